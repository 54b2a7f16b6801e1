use super::*;

const CONFIG: &str = "
# the usual one
[default]
region = eu-west-1

[profile dev]
region=eu-central-1
endpoint_url = http://general:1 # not for S3
services = local

[services local]
dynamodb =
  endpoint_url = http://other:2
s3 =
  endpoint_url = http://s3:3

[profile company]
sso_session = company
";

const CREDENTIALS: &str = "
[default]
aws_access_key_id = default-id
aws_secret_access_key = default-secret
[dev]
aws_access_key_id = dev-id
aws_secret_access_key = dev=secret
aws_session_token = dev-token
[half]
aws_access_key_id = half-id
";

fn resolve(options: &LocationOptions, variables: &[(&str, &str)]) -> Result<Aws, String> {
    let variable = |name: &str| {
        let found = variables.iter().find(|(variable, _)| *variable == name);
        found
            .map(|(_, value)| value.to_string())
            .or_else(|| (name == "HOME").then(|| "/home/me".to_owned()))
    };
    let read = |path: &Path| {
        Ok(match path.to_str().unwrap() {
            "/home/me/.aws/config" => Some(CONFIG.to_owned()),
            "/home/me/.aws/credentials" | "/elsewhere" => Some(CREDENTIALS.to_owned()),
            _ => None,
        })
    };
    Aws::resolve(options, &variable, &read)
}

fn keys_of(aws: &Aws) -> (&str, &str, Option<&str>) {
    match &aws.credentials {
        Credentials::Key(Key { id, secret, token }) => (id, secret, token.as_deref()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn profiles_give_what_nothing_else_gives() {
    let aws = resolve(&LocationOptions::default(), &[]).unwrap();
    assert_eq!((aws.region.as_str(), aws.endpoint.as_deref()), ("eu-west-1", None));
    assert_eq!(keys_of(&aws), ("default-id", "default-secret", None));
    let aws = resolve(&LocationOptions::default(), &[("AWS_PROFILE", "dev")]).unwrap();
    assert_eq!(
        (aws.region.as_str(), aws.endpoint.as_deref()),
        ("eu-central-1", Some("http://s3:3"))
    );
    assert_eq!(keys_of(&aws), ("dev-id", "dev=secret", Some("dev-token")));
}

#[test]
fn the_environment_comes_before_profiles_and_options_before_both() {
    let mut variables = vec![
        ("AWS_ACCESS_KEY_ID", "id"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_SESSION_TOKEN", "token"),
        ("AWS_DEFAULT_REGION", "us-west-1"),
        ("AWS_ENDPOINT_URL", "http://general"),
    ];
    let aws = resolve(&LocationOptions::default(), &variables).unwrap();
    assert_eq!(keys_of(&aws), ("id", "secret", Some("token")));
    assert_eq!(
        (aws.region.as_str(), aws.endpoint.as_deref()),
        ("us-west-1", Some("http://general"))
    );
    variables.extend([("AWS_REGION", "us-west-2"), ("AWS_ENDPOINT_URL_S3", "http://s3")]);
    let aws = resolve(&LocationOptions::default(), &variables).unwrap();
    assert_eq!((aws.region.as_str(), aws.endpoint.as_deref()), ("us-west-2", Some("http://s3")));
    let options = LocationOptions {
        endpoint: Some("http://option".to_owned()),
        region: Some("option".to_owned()),
        profile: Some("dev".to_owned()),
        ..LocationOptions::default()
    };
    let aws = resolve(&options, &variables).unwrap();
    assert_eq!((aws.region.as_str(), aws.endpoint.as_deref()), ("option", Some("http://option")));
    assert_eq!(keys_of(&aws).0, "dev-id");
}

#[test]
fn credentials_come_from_services_last() {
    let nowhere = ("HOME", "/nowhere");
    let credentials = |variables: &[(&str, &str)]| {
        resolve(&LocationOptions::default(), variables).unwrap().credentials
    };
    assert_eq!(credentials(&[nowhere]), Credentials::Instance { endpoint: None });
    assert_eq!(credentials(&[nowhere, ("AWS_EC2_METADATA_DISABLED", "true")]), Credentials::None);
    let relative = ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/x");
    assert_eq!(
        credentials(&[nowhere, relative]),
        Credentials::Container { relative_uri: "/x".to_owned() }
    );
    let web = [nowhere, ("AWS_WEB_IDENTITY_TOKEN_FILE", "/token"), ("AWS_ROLE_ARN", "role")];
    assert!(matches!(credentials(&web), Credentials::WebIdentity { .. }));
    let elsewhere = [nowhere, ("AWS_SHARED_CREDENTIALS_FILE", "/elsewhere")];
    assert!(matches!(credentials(&elsewhere), Credentials::Key(_)));
}

#[test]
fn what_is_missing_is_named_and_no_secret_is() {
    for (variables, expected) in [
        (vec![("AWS_ACCESS_KEY_ID", "id")], "the environment lacks AWS_SECRET_ACCESS_KEY"),
        (vec![("AWS_PROFILE", "none")], "there is no profile `none`"),
        (vec![("AWS_PROFILE", "half")], "profile `half` lacks aws_secret_access_key"),
        (vec![("AWS_PROFILE", "company")], "by sso_session"),
    ] {
        let error = resolve(&LocationOptions::default(), &variables).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    let shown = format!("{:?}", resolve(&LocationOptions::default(), &[]).unwrap());
    let key = Key { id: "key-id".to_owned(), secret: "default-secret".to_owned(), token: None };
    let shown = format!("{shown}{key:?}");
    assert!(!shown.contains("default-secret") && !shown.contains("default-id"), "{shown}");
}
