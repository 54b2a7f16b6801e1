use super::*;

#[test]
fn addresses_have_one_normal_form() {
    for (text, normal) in [
        ("/srv/store", "/srv/store"),
        ("store", "store"),
        ("./a:b", "./a:b"),
        ("file:///srv/store", "/srv/store"),
        ("file:a:b", "./a:b"),
        ("varve:/srv/store", "/srv/store"),
        ("varve:store", "store"),
        ("shared:///mnt/nfs/store", "shared:///mnt/nfs/store"),
        ("shared:/mnt/nfs", "shared:///mnt/nfs"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("s3://my.bucket/env=test", "s3://my.bucket/env=test"),
        ("gs://bucket/a", "gs://bucket/a"),
        ("az://container/a", "az://container/a"),
    ] {
        let location = Location::parse(text).unwrap();
        assert_eq!(location.to_string(), normal, "{text}");
        assert_eq!(Location::parse(normal).unwrap(), location, "{text}");
        assert_eq!(location.local().is_some(), !normal.contains("://"), "{text}");
    }
}

#[test]
fn what_is_no_address_is_refused() {
    for (text, error) in [
        ("", UriError::Empty),
        ("http://server/x", UriError::UnknownScheme("http".to_owned())),
        ("file://host/x", UriError::OtherMachine("file")),
        ("varve://host/x", UriError::OtherMachine("varve")),
        ("shared://host/x", UriError::OtherMachine("shared")),
        ("shared:relative", UriError::NoDirectory("shared")),
        ("file:", UriError::NoDirectory("file")),
        ("s3:", UriError::NoBucket("s3")),
        ("s3://", UriError::NoBucket("s3")),
        ("gs:///prefix", UriError::NoBucket("gs")),
        ("s3://key:secret@bucket/x", UriError::Credentials),
        ("s3://bucket:80/x", UriError::Character(':')),
        ("s3://bucket/x?region=y", UriError::Character('?')),
        ("s3://bucket/a b", UriError::Character(' ')),
        ("s3://-bucket/a", UriError::BucketName),
        ("s3://bucket//a", UriError::PrefixPart),
        ("s3://bucket/a/../b", UriError::PrefixPart),
        ("s3://bucket--usw2-az1--x-s3/a", UriError::DirectoryBucket),
    ] {
        assert_eq!(Location::parse(text), Err(error), "{text}");
    }
    let long = format!("s3://bucket/{}", "a".repeat(PREFIX_BYTES_MAX + 1));
    assert_eq!(Location::parse(&long), Err(UriError::PrefixLength));
}

#[test]
fn endpoints_say_whether_requests_are_encrypted() {
    assert_eq!(
        checked_endpoint("s3://b", "http://127.0.0.1:9000/").unwrap(),
        "http://127.0.0.1:9000"
    );
    assert_eq!(checked_endpoint("s3://b", "https://[::1]:9000").unwrap(), "https://[::1]:9000");
    for endpoint in
        ["", "127.0.0.1:9000", "ftp://server", "https://", "http://a b", "http://server?x"]
    {
        assert!(checked_endpoint("s3://b", endpoint).is_err(), "{endpoint}");
    }
    let error = checked_endpoint("s3://b", "http://key:hunter2@server").unwrap_err();
    assert!(!error.to_string().contains("hunter2"), "{error}");
}

/// What the fuzz target `storage_uri` looks at too.
#[test]
fn the_normal_form_of_each_address_names_the_same_location() {
    const PARTS: [&str; 16] = [
        "s3", "gs", "file", "varve", "shared", "://", ":", "/", "//", "..", ".", "a", "-", "@",
        "?", "ü",
    ];
    let mut parsed = 0;
    for number in 0..PARTS.len().pow(4) {
        let parts = (0..4).map(|place| PARTS[number >> (4 * place) & 15]);
        let text: String = parts.collect();
        let Ok(location) = Location::parse(&text) else { continue };
        parsed += 1;
        let normal = location.to_string();
        assert_eq!(Location::parse(&normal).as_ref(), Ok(&location), "{text}");
        assert_eq!(Location::parse(&normal).unwrap().to_string(), normal, "{text}");
    }
    assert!(parsed > 1000);
}
