//! Credentials and certificates as a process of its own finds them: in its environment and in files that this names.

use std::io;
use std::path::Path;

use bytes::Bytes;
use varve_storage::{Created, LocationOptions, is_transient};
use varve_testkit::{Command, S3Server, Tls, put_script, there_is};

use crate::objects::{open, options};

/// Tells the process that it is one of its own, and what it is to find.
const EXPECTED: &str = "VARVE_STORAGE_EXPECTED";

/// Runs the same test in a process with this environment.
fn run(test: &str, expected: &str, variables: &[(&str, String)]) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(EXPECTED, expected);
    for unset in [
        "AWS_PROFILE",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_REGION",
        "AWS_ENDPOINT_URL",
    ] {
        // An empty variable counts as none.
        command.env(unset, "");
    }
    command
        .env("HOME", "/nonexistent")
        .envs(variables.iter().map(|(name, value)| (*name, value.as_str())));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{expected}: {}", String::from_utf8_lossy(&output.stderr));
}

/// In the process with the environment: makes an object with nothing but the address.
fn create() -> io::Result<Created> {
    let objects = open("s3://varve-test/environment", &LocationOptions::default())?;
    objects.create("object", Bytes::from_static(b"bytes"))
}

#[test]
#[allow(clippy::disallowed_methods, reason = "profile files are files of the machine")]
fn credentials_come_from_the_environment_and_profile_files() {
    match std::env::var(EXPECTED).as_deref() {
        Ok("new") => return assert_eq!(create().unwrap(), Created::New),
        Ok("there") => return assert_eq!(create().unwrap(), Created::Exists),
        Ok("none") => {
            let error = create().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
            return assert!(error.to_string().contains("no credentials are set"), "{error}");
        }
        Ok(other) => panic!("{other}"),
        Err(_) => {}
    }
    let Some(server) = S3Server::start() else { return };
    let test = "credentials::credentials_come_from_the_environment_and_profile_files";
    run(test, "new", &server.variables());
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: String| {
        std::fs::write(dir.path().join(name), text).unwrap();
        dir.path().join(name).display().to_string()
    };
    let (id, secret) = server.keys();
    let keys = format!("[tests]\naws_access_key_id = {id}\naws_secret_access_key = {secret}\n");
    let config =
        format!("[profile tests]\nendpoint_url = {}\nregion = us-east-1\n", server.endpoint());
    let files = [
        ("AWS_SHARED_CREDENTIALS_FILE", file("credentials", keys)),
        ("AWS_CONFIG_FILE", file("config", config)),
        ("AWS_PROFILE", "tests".to_owned()),
    ];
    run(test, "there", &files);
    let endpoint = ("AWS_ENDPOINT_URL", server.endpoint());
    run(test, "none", &[endpoint.clone(), ("AWS_EC2_METADATA_DISABLED", "true".to_owned())]);
    // Nobody listens at this port, as where there is no metadata service.
    run(
        test,
        "none",
        &[endpoint, ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:9".to_owned())],
    );
}

/// Makes an authority and a certificate of 127.0.0.1 that it signs.
fn certificates(dir: &Path) -> Tls {
    put_script(
        dir.join("make"),
        "#!/bin/sh
set -e
cd \"$1\"
new='-newkey rsa:2048 -nodes -sha256'
openssl req -x509 $new -keyout authority.key -out authority.pem -subj /CN=authority -days 2
openssl req $new -keyout server.key -out server.csr -subj /CN=server
echo 'subjectAltName = IP:127.0.0.1' >server.ext
openssl x509 -req -in server.csr -CA authority.pem -CAkey authority.key -CAcreateserial -sha256 -days 2 \\
    -extfile server.ext -out server.pem",
    );
    let output = Command::new(dir.join("make")).arg(dir).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Tls { certificate: dir.join("server.pem"), key: dir.join("server.key") }
}

#[test]
fn encrypted_requests_need_a_certificate_that_is_trusted() {
    match std::env::var(EXPECTED).as_deref() {
        Ok("new") => return assert_eq!(create().unwrap(), Created::New),
        Ok(other) => panic!("{other}"),
        Err(_) => {}
    }
    if !there_is("openssl") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let Some(server) = S3Server::start_with_tls(certificates(dir.path())) else { return };
    let address = format!("s3://{}/store", server.bucket());
    let objects = open(&address, &options(&server, server.endpoint())).unwrap();
    let error = objects.create("object", Bytes::new()).unwrap_err();
    assert!(error.to_string().contains("is not trusted"), "{error}");
    assert!(!is_transient(&error), "{error:?}");
    // A server without encryption answers nothing that could be understood.
    let plain = S3Server::start().unwrap();
    let endpoint = plain.endpoint().replace("http://", "https://");
    let objects = open(&address, &options(&plain, endpoint)).unwrap();
    objects.create("object", Bytes::new()).unwrap_err();
    let mut variables = server.variables();
    variables.push(("SSL_CERT_FILE", dir.path().join("authority.pem").display().to_string()));
    run("credentials::encrypted_requests_need_a_certificate_that_is_trusted", "new", &variables);
}
