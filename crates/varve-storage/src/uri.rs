//! Addresses of stores: [`Location`].
//!
//! | address | what it names |
//! | --- | --- |
//! | `PATH`, `file:///PATH`, `varve:PATH` | a directory of this machine |
//! | `shared:///PATH` | a directory of a cluster file system |
//! | `s3://BUCKET/PREFIX` | a prefix of a bucket of S3, or of a server that speaks its protocol |
//! | `gs://BUCKET/PREFIX` | the same of Google Cloud Storage |
//! | `az://CONTAINER/PREFIX` | the same of Azure |
//!
//! Invariant: no error repeats more of an address than one character or its scheme, because people write credentials
//! into addresses.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::{BackoffConfig, ClientOptions, RetryConfig};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use varve_env::Env;

use crate::aws::{Aws, Credentials};
use crate::cloud::{CONNECT_MAX, CloudObjects, Place, Protocol};
use crate::objects::Objects;
use crate::shared::SharedObjects;

/// The most bytes of a prefix, so that the names of objects below it are shorter than the 1,024 bytes that S3 allows.
const PREFIX_BYTES_MAX: usize = 512;

/// The most bytes of the name of a bucket.
const BUCKET_BYTES_MAX: usize = 255;

/// How long a connection that nobody uses is kept: shorter than servers do.
const IDLE_MAX: std::time::Duration = std::time::Duration::from_secs(20);

/// Where a store lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location(Kind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Local(PathBuf),
    Shared(PathBuf),
    Bucket { protocol: Protocol, bucket: String, prefix: String },
}

/// Why text is no address of a store.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum UriError {
    /// There is no text.
    #[error("the address of the store is empty: give a directory, or s3://BUCKET/PREFIX")]
    Empty,
    /// No store is named in this way.
    #[error("{0}: is no kind of store: give a directory, s3://, gs://, az:// or shared:///")]
    UnknownScheme(String),
    /// The address of a directory names another machine.
    #[error("the address names another machine: a directory of this machine is {0}:///PATH")]
    OtherMachine(&'static str),
    /// The address of a directory names none.
    #[error("the address names no directory: give {0}:///PATH")]
    NoDirectory(&'static str),
    /// The address names no bucket.
    #[error("the address names no bucket: give {0}://BUCKET/PREFIX")]
    NoBucket(&'static str),
    /// The address holds what may be a password.
    #[error("an address holds no credentials: give them in the environment or in profile files")]
    Credentials,
    /// A character that a bucket, or a prefix, cannot have.
    #[error("`{0}` cannot be in the name of a bucket or prefix")]
    Character(char),
    /// The name of the bucket breaks the rules for such names.
    #[error("the name of the bucket is too long, or begins or ends with `-` or `.`")]
    BucketName,
    /// The prefix has a part that is empty, `.` or `..`.
    #[error("the prefix has an empty part, or `.` or `..` as a part")]
    PrefixPart,
    /// The prefix is too long.
    #[error("the prefix has more than {PREFIX_BYTES_MAX} bytes")]
    PrefixLength,
    /// A bucket of S3 whose listings have no order.
    #[error(
        "a directory bucket of S3 cannot hold a store, because it lists names in no order: use a general purpose bucket"
    )]
    DirectoryBucket,
}

impl Protocol {
    fn scheme(self) -> &'static str {
        match self {
            Protocol::S3 => "s3",
            Protocol::Gcs => "gs",
            Protocol::Azure => "az",
        }
    }
}

impl Location {
    /// Reads an address. A path that looks like an address of another kind can be given as `./name:with-a-colon`.
    pub fn parse(text: &str) -> Result<Location, UriError> {
        if text.is_empty() {
            return Err(UriError::Empty);
        }
        let Some((scheme, rest)) = text.split_once(':').filter(|(scheme, _)| is_scheme(scheme))
        else {
            return Ok(Location(local(text)));
        };
        match scheme {
            "file" => directory("file", rest).map(local),
            "varve" => directory("varve", rest).map(local),
            "shared" => match directory("shared", rest)? {
                path if path.starts_with('/') => Ok(Kind::Shared(PathBuf::from(path))),
                _ => Err(UriError::NoDirectory("shared")),
            },
            "s3" => bucket(Protocol::S3, rest),
            "gs" => bucket(Protocol::Gcs, rest),
            "az" => bucket(Protocol::Azure, rest),
            _ => Err(UriError::UnknownScheme(scheme.to_owned())),
        }
        .map(Location)
    }

    /// Returns the directory, if the store is one of this machine.
    pub fn local(&self) -> Option<&Path> {
        match &self.0 {
            Kind::Local(path) => Some(path),
            Kind::Shared(_) | Kind::Bucket { .. } => None,
        }
    }

    /// Opens the objects below this address, which may be none yet. Nothing is sent to a server.
    ///
    /// Errors: `Unsupported` for a directory of this machine. `InvalidInput` if the options, the environment or the
    /// profile files make no sense. `PermissionDenied` if there are no credentials.
    pub fn objects(
        &self,
        env: &Arc<dyn Env>,
        options: &LocationOptions,
    ) -> io::Result<Arc<dyn Objects>> {
        match &self.0 {
            Kind::Local(_) => {
                let text = format!(
                    "{self} is a directory of this machine, which holds files and no objects"
                );
                Err(io::Error::new(io::ErrorKind::Unsupported, text))
            }
            Kind::Shared(path) => {
                let env = Arc::clone(env);
                Ok(Arc::new(SharedObjects::open(env, path.clone(), self.to_string())))
            }
            Kind::Bucket { protocol, bucket, prefix } => {
                let place = Place {
                    protocol: *protocol,
                    bucket: bucket.clone(),
                    prefix: match prefix.as_str() {
                        "" => String::new(),
                        prefix => format!("{prefix}/"),
                    },
                    address: self.to_string(),
                    endpoint: String::new(),
                };
                let opened = match protocol {
                    Protocol::S3 => s3(env, options, place),
                    Protocol::Gcs => gcs(options, place),
                    Protocol::Azure => azure(options, place),
                };
                Ok(Arc::new(opened?))
            }
        }
    }
}

impl fmt::Display for Location {
    /// The normal form: [`Location::parse`] reads it as the same location.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Local(path) => write!(f, "{}", path.display()),
            Kind::Shared(path) => write!(f, "shared://{}", path.display()),
            Kind::Bucket { protocol, bucket, prefix } => {
                write!(f, "{}://{bucket}", protocol.scheme())?;
                match prefix.as_str() {
                    "" => Ok(()),
                    prefix => write!(f, "/{prefix}"),
                }
            }
        }
    }
}

/// Returns whether `text` has the form of a scheme (RFC 3986, section 3.1).
fn is_scheme(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
}

/// Names a directory of this machine by a path that does not look like an address.
fn local(path: &str) -> Kind {
    let is_like_address = path.split_once(':').is_some_and(|(scheme, _)| is_scheme(scheme));
    Kind::Local(PathBuf::from(if is_like_address { format!("./{path}") } else { path.to_owned() }))
}

/// Reads the directory behind `file:` and the like.
fn directory<'a>(scheme: &'static str, rest: &'a str) -> Result<&'a str, UriError> {
    // The name of a machine would be between the second slash and the third.
    match rest.strip_prefix("//") {
        Some(path) if path.starts_with('/') => Ok(path),
        Some(_) => Err(UriError::OtherMachine(scheme)),
        None if rest.is_empty() => Err(UriError::NoDirectory(scheme)),
        None => Ok(rest),
    }
}

/// Reads the bucket and the prefix behind `s3:` and the like.
fn bucket(protocol: Protocol, rest: &str) -> Result<Kind, UriError> {
    let none = UriError::NoBucket(protocol.scheme());
    let Some(rest) = rest.strip_prefix("//") else { return Err(none) };
    if rest.contains('@') {
        return Err(UriError::Credentials);
    }
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.is_empty() {
        return Err(none);
    }
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    if let Some(c) = bucket.chars().find(|c| !is_allowed(*c)) {
        return Err(UriError::Character(c));
    }
    let is_end = |c| matches!(c, '-' | '.');
    if bucket.len() > BUCKET_BYTES_MAX || bucket.starts_with(is_end) || bucket.ends_with(is_end) {
        return Err(UriError::BucketName);
    }
    if protocol == Protocol::S3 && bucket.ends_with("--x-s3") {
        return Err(UriError::DirectoryBucket);
    }
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    let is_allowed = |c: char| {
        is_allowed(c) || matches!(c, '/' | '=' | '+' | ',' | ':' | '!' | '(' | ')' | '\'')
    };
    if let Some(c) = prefix.chars().find(|c| !is_allowed(*c)) {
        return Err(UriError::Character(c));
    }
    if !prefix.is_empty() && prefix.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(UriError::PrefixPart);
    }
    if prefix.len() > PREFIX_BYTES_MAX {
        return Err(UriError::PrefixLength);
    }
    Ok(Kind::Bucket { protocol, bucket: bucket.to_owned(), prefix: prefix.to_owned() })
}

/// How an object store is reached, where the environment and the profile files do not say it or say something else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LocationOptions {
    /// The URL of the server. Requests are sent without encryption only if it begins with `http://`.
    pub endpoint: Option<String>,
    /// The region of the bucket.
    pub region: Option<String>,
    /// The bucket is the first part of the path of a request, and not of the name of the server. Without it this is so
    /// if an endpoint is given, or the name of the bucket has a dot.
    pub path_style: Option<bool>,
    /// The profile of the profile files of AWS.
    pub profile: Option<String>,
    /// The key to S3. It is never written anywhere.
    #[serde(skip)]
    pub key: Option<Key>,
}

/// A key to S3. Its `Debug` shows no secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    /// The public part.
    pub id: String,
    /// The secret part.
    pub secret: String,
    /// The token of a session, if the key is good for one only.
    pub token: Option<String>,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").finish_non_exhaustive()
    }
}

fn invalid(address: &str, text: impl fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{address}: {text}"))
}

/// Checks the URL of a server; returns it without a slash at its end.
fn checked_endpoint(address: &str, endpoint: &str) -> io::Result<String> {
    let rest = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
    let Some(rest) = rest else {
        return Err(invalid(address, "the endpoint begins neither with https:// nor with http://"));
    };
    if rest.contains('@') {
        return Err(invalid(address, UriError::Credentials));
    }
    let is_allowed =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | ':' | '[' | ']' | '/');
    if let Some(c) = rest.chars().find(|c| !is_allowed(*c)) {
        return Err(invalid(address, format!("`{c}` cannot be in an endpoint")));
    }
    if rest.is_empty() || rest.starts_with(['/', ':']) {
        return Err(invalid(address, "the endpoint names no server"));
    }
    let endpoint = endpoint.trim_end_matches('/');
    Ok(endpoint.to_owned())
}

fn client_options(endpoint: &str) -> ClientOptions {
    ClientOptions::new()
        .with_allow_http(endpoint.starts_with("http://"))
        .with_connect_timeout(CONNECT_MAX)
        // The adapter waits longer for requests with more bytes.
        .with_timeout_disabled()
        .with_pool_idle_timeout(IDLE_MAX)
}

/// The layer above makes requests again, and knows which ones it may.
fn no_retries() -> RetryConfig {
    RetryConfig { backoff: BackoffConfig::default(), max_retries: 0, retry_timeout: CONNECT_MAX }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn s3(env: &Arc<dyn Env>, options: &LocationOptions, mut place: Place) -> io::Result<CloudObjects> {
    let read = |path: &Path| crate::aws::read_file(&**env, path);
    let Aws { endpoint, region, credentials } =
        Aws::resolve(options, &variable, &read).map_err(|text| invalid(&place.address, text))?;
    let path_style = options.path_style.unwrap_or(endpoint.is_some() || place.bucket.contains('.'));
    place.endpoint = match &endpoint {
        Some(endpoint) => checked_endpoint(&place.address, endpoint)?,
        None => format!("https://s3.{region}.amazonaws.com"),
    };
    let (bucket, endpoint) = (place.bucket.clone(), place.endpoint.clone());
    let url = match (path_style, endpoint.split_once("://")) {
        (false, Some((scheme, host))) => format!("{scheme}://{bucket}.{host}"),
        _ => endpoint.clone(),
    };
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(bucket)
        .with_region(region)
        .with_endpoint(url)
        .with_virtual_hosted_style_request(!path_style)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        // One object is removed by one request, which every server knows.
        .with_disable_bulk_delete(true)
        .with_retry(no_retries())
        .with_client_options(client_options(&endpoint));
    match credentials {
        Credentials::Key(Key { id, secret, token }) => {
            builder = builder.with_access_key_id(id).with_secret_access_key(secret);
            if let Some(token) = token {
                builder = builder.with_token(token);
            }
        }
        Credentials::WebIdentity { token_file, role, session } => {
            builder = builder
                .with_config(AmazonS3ConfigKey::WebIdentityTokenFile, token_file)
                .with_config(AmazonS3ConfigKey::RoleArn, role);
            if let Some(session) = session {
                builder = builder.with_config(AmazonS3ConfigKey::RoleSessionName, session);
            }
        }
        Credentials::Container { relative_uri } => {
            builder = builder
                .with_config(AmazonS3ConfigKey::ContainerCredentialsRelativeUri, relative_uri);
        }
        Credentials::Pod { uri, token_file } => {
            builder = builder
                .with_config(AmazonS3ConfigKey::ContainerCredentialsFullUri, uri)
                .with_config(AmazonS3ConfigKey::ContainerAuthorizationTokenFile, token_file);
        }
        Credentials::Instance { endpoint: None } => {}
        Credentials::Instance { endpoint: Some(endpoint) } => {
            builder = builder.with_metadata_endpoint(endpoint);
        }
        Credentials::None => {
            let text = format!(
                "{}: no credentials are set: give AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile",
                place.address
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
    }
    CloudObjects::open(place, |connector| builder.with_http_connector(connector).build())
}

fn gcs(options: &LocationOptions, mut place: Place) -> io::Result<CloudObjects> {
    let endpoint = options.endpoint.as_deref().unwrap_or("https://storage.googleapis.com");
    place.endpoint = checked_endpoint(&place.address, endpoint)?;
    let builder = GoogleCloudStorageBuilder::from_env()
        .with_bucket_name(place.bucket.clone())
        .with_base_url(&place.endpoint)
        .with_retry(no_retries())
        .with_client_options(client_options(&place.endpoint));
    CloudObjects::open(place, |connector| builder.with_http_connector(connector).build())
}

fn azure(options: &LocationOptions, mut place: Place) -> io::Result<CloudObjects> {
    const ACCOUNT: &str = "AZURE_STORAGE_ACCOUNT_NAME";
    let endpoint = match (&options.endpoint, variable(ACCOUNT)) {
        (Some(endpoint), _) => endpoint.clone(),
        (None, Some(account)) => format!("https://{account}.blob.core.windows.net"),
        (None, None) => {
            return Err(invalid(
                &place.address,
                format!("{ACCOUNT} is not set: give the storage account"),
            ));
        }
    };
    place.endpoint = checked_endpoint(&place.address, &endpoint)?;
    let builder = MicrosoftAzureBuilder::from_env()
        .with_container_name(place.bucket.clone())
        .with_endpoint(place.endpoint.clone())
        .with_retry(no_retries())
        .with_client_options(client_options(&place.endpoint));
    CloudObjects::open(place, |connector| builder.with_http_connector(connector).build())
}

#[cfg(test)]
mod tests;
