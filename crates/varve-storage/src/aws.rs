//! Region, endpoint and credentials as the tools of AWS take them.
//!
//! Each comes from the first of these places that has it:
//!
//! 1. the options of the command;
//! 2. environment variables;
//! 3. the profile, in `~/.aws/config` and `~/.aws/credentials`;
//! 4. for credentials: the services of a container, a pod or an instance, which `object_store` asks.
//!
//! Invariant: what is read here is neither logged nor shown: `Debug` and errors hold names only.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use varve_env::{Env, OpenMode};

use crate::uri::{Key, LocationOptions};

/// The region that is assumed, as other tools do.
const REGION_DEFAULT: &str = "us-east-1";

/// The most bytes that are read of a profile file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// What a request to S3 needs to know.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Aws {
    /// The URL of the server, unless it is Amazon's.
    pub(crate) endpoint: Option<String>,
    pub(crate) region: String,
    pub(crate) credentials: Credentials,
}

/// Where credentials come from.
#[derive(PartialEq, Eq)]
pub(crate) enum Credentials {
    Key(Key),
    WebIdentity {
        token_file: String,
        role: String,
        session: Option<String>,
    },
    /// The service of a container.
    Container {
        relative_uri: String,
    },
    /// The service of a pod.
    Pod {
        uri: String,
        token_file: String,
    },
    /// The metadata service of a machine.
    Instance {
        endpoint: Option<String>,
    },
    /// There are none, and the metadata service is not to be asked.
    None,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Credentials::Key(_) => "Key",
            Credentials::WebIdentity { .. } => "WebIdentity",
            Credentials::Container { .. } => "Container",
            Credentials::Pod { .. } => "Pod",
            Credentials::Instance { .. } => "Instance",
            Credentials::None => "None",
        })
    }
}

/// The settings of one section of a profile file. Those of a group below a key are under `GROUP.KEY`.
type Section = BTreeMap<String, String>;

/// Reads a profile file; `None` if there is none.
pub(crate) fn read_file(env: &dyn Env, path: &Path) -> io::Result<Option<String>> {
    let file = match env.open(path, OpenMode::Read) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut bytes = vec![0; file.stat()?.len.min(FILE_BYTES_MAX) as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// Splits a profile file into its sections.
fn sections(text: &str) -> BTreeMap<String, Section> {
    let mut sections: BTreeMap<String, Section> = BTreeMap::new();
    let mut section = None;
    let mut group = String::new();
    for line in text.lines() {
        let is_nested = line.starts_with([' ', '\t']);
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = line.strip_prefix('[') {
            let name = name.split(']').next().unwrap_or_default();
            let name = name.split_whitespace().collect::<Vec<_>>().join(" ");
            sections.entry(name.clone()).or_default();
            (section, group) = (Some(name), String::new());
            continue;
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        let Some(section) = section.as_ref().and_then(|name| sections.get_mut(name)) else {
            continue;
        };
        let (key, value) = (key.trim().to_ascii_lowercase(), value.trim());
        let value = value.split(" #").next().unwrap_or_default().trim_end();
        if is_nested && !group.is_empty() {
            section.insert(format!("{group}.{key}"), value.to_owned());
        } else {
            group = if value.is_empty() { key.clone() } else { String::new() };
            section.insert(key, value.to_owned());
        }
    }
    sections
}

/// The settings of the chosen profile.
struct Profile {
    name: String,
    settings: Section,
    /// The settings of the services that the profile names.
    services: Section,
}

/// Keys of ways to get credentials that are not built in.
const OTHER_WAYS: &[&str] = &[
    "credential_process",
    "credential_source",
    "login_session",
    "source_profile",
    "sso_session",
    "sso_start_url",
];

impl Profile {
    fn read(
        options: &LocationOptions,
        variable: &dyn Fn(&str) -> Option<String>,
        read: &dyn Fn(&Path) -> io::Result<Option<String>>,
    ) -> Result<Profile, String> {
        let asked = options.profile.clone().or_else(|| variable("AWS_PROFILE"));
        let name = asked.clone().unwrap_or_else(|| "default".to_owned());
        let file = |named: &str, usual: &str| -> Result<BTreeMap<String, Section>, String> {
            let usual = || variable("HOME").map(|home| Path::new(&home).join(".aws").join(usual));
            let path = variable(named).map(PathBuf::from).or_else(usual);
            let Some(path) = path else { return Ok(BTreeMap::new()) };
            let text =
                read(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
            Ok(sections(&text.unwrap_or_default()))
        };
        let mut config = file("AWS_CONFIG_FILE", "config")?;
        let mut credentials = file("AWS_SHARED_CREDENTIALS_FILE", "credentials")?;
        let settings = config.remove(&format!("profile {name}"));
        let settings = settings.or_else(|| config.remove(&name).filter(|_| name == "default"));
        let keys = credentials.remove(&name);
        if settings.is_none() && keys.is_none() && asked.is_some() {
            return Err(format!("there is no profile `{name}` in the profile files of AWS"));
        }
        let mut settings = settings.unwrap_or_default();
        settings.extend(keys.unwrap_or_default());
        let services = settings.get("services").map(|services| format!("services {services}"));
        let services = services.and_then(|services| config.remove(&services)).unwrap_or_default();
        Ok(Profile { name, settings, services })
    }

    fn get(&self, key: &str) -> Option<String> {
        self.settings.get(key).filter(|value| !value.is_empty()).cloned()
    }

    fn credentials(&self) -> Result<Option<Credentials>, String> {
        let name = &self.name;
        if let Some(keys) = keys(
            self.get("aws_access_key_id"),
            self.get("aws_secret_access_key"),
            self.get("aws_session_token"),
        ) {
            return keys.map(Some).map_err(|missing| {
                format!("profile `{name}` lacks {}", missing.to_ascii_lowercase())
            });
        }
        let web_identity = (self.get("web_identity_token_file"), self.get("role_arn"));
        if let (Some(token_file), Some(role)) = web_identity {
            let session = self.get("role_session_name");
            return Ok(Some(Credentials::WebIdentity { token_file, role, session }));
        }
        match OTHER_WAYS.iter().find(|key| self.get(key).is_some()) {
            Some(key) => Err(format!(
                "profile `{name}` gets its credentials by {key}, which only the tools of AWS can: \
                 run `eval \"$(aws configure export-credentials --profile {name} --format env)\"` first"
            )),
            None => Ok(None),
        }
    }
}

/// Makes credentials of a pair of keys. `None` if both are missing; the name of the missing one if one is.
fn keys(
    id: Option<String>,
    secret: Option<String>,
    token: Option<String>,
) -> Option<Result<Credentials, &'static str>> {
    match (id, secret) {
        (Some(id), Some(secret)) => Some(Ok(Credentials::Key(Key { id, secret, token }))),
        (Some(_), None) => Some(Err("AWS_SECRET_ACCESS_KEY")),
        (None, Some(_)) => Some(Err("AWS_ACCESS_KEY_ID")),
        (None, None) => None,
    }
}

impl Aws {
    /// Finds out how to reach S3. `variable` returns environment variables, `read` the text of a file.
    pub(crate) fn resolve(
        options: &LocationOptions,
        variable: &dyn Fn(&str) -> Option<String>,
        read: &dyn Fn(&Path) -> io::Result<Option<String>>,
    ) -> Result<Aws, String> {
        let profile = Profile::read(options, variable, read)?;
        let endpoint = options.endpoint.clone();
        let endpoint = endpoint.or_else(|| variable("AWS_ENDPOINT_URL_S3"));
        let endpoint = endpoint.or_else(|| variable("AWS_ENDPOINT_URL"));
        let endpoint = endpoint.or_else(|| profile.services.get("s3.endpoint_url").cloned());
        let endpoint = endpoint.or_else(|| profile.get("endpoint_url"));
        let region = options.region.clone();
        let region = region.or_else(|| variable("AWS_REGION"));
        let region = region.or_else(|| variable("AWS_DEFAULT_REGION"));
        let region = region.or_else(|| profile.get("region"));
        let region = region.unwrap_or_else(|| REGION_DEFAULT.to_owned());
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if !region.chars().all(is_allowed) {
            return Err("a region consists of letters, digits and `-`".to_owned());
        }
        let credentials = credentials(options, variable, &profile)?;
        Ok(Aws { endpoint, region, credentials })
    }
}

fn credentials(
    options: &LocationOptions,
    variable: &dyn Fn(&str) -> Option<String>,
    profile: &Profile,
) -> Result<Credentials, String> {
    if let Some(key) = &options.key {
        return Ok(Credentials::Key(key.clone()));
    }
    // Who names a profile means that one.
    if options.profile.is_none() {
        let keys = keys(
            variable("AWS_ACCESS_KEY_ID"),
            variable("AWS_SECRET_ACCESS_KEY"),
            variable("AWS_SESSION_TOKEN"),
        );
        if let Some(keys) = keys {
            return keys.map_err(|missing| format!("the environment lacks {missing}"));
        }
        let web_identity = (variable("AWS_WEB_IDENTITY_TOKEN_FILE"), variable("AWS_ROLE_ARN"));
        if let (Some(token_file), Some(role)) = web_identity {
            let session = variable("AWS_ROLE_SESSION_NAME");
            return Ok(Credentials::WebIdentity { token_file, role, session });
        }
    }
    if let Some(credentials) = profile.credentials()? {
        return Ok(credentials);
    }
    if let Some(relative_uri) = variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") {
        return Ok(Credentials::Container { relative_uri });
    }
    let pod = (
        variable("AWS_CONTAINER_CREDENTIALS_FULL_URI"),
        variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
    );
    if let (Some(uri), Some(token_file)) = pod {
        return Ok(Credentials::Pod { uri, token_file });
    }
    match variable("AWS_EC2_METADATA_DISABLED") {
        Some(disabled) if disabled.eq_ignore_ascii_case("true") => Ok(Credentials::None),
        _ => Ok(Credentials::Instance { endpoint: variable("AWS_EC2_METADATA_SERVICE_ENDPOINT") }),
    }
}

#[cfg(test)]
mod tests;
