//! What a server answered to a request that `object_store` made.
//!
//! The errors of `object_store` tell neither the status nor the code of an answer. The HTTP client that it is given here
//! notes both, for the task that waits for the request: [`observe`].

use std::cell::RefCell;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};

/// What the last HTTP request of a task came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// There was a request.
    pub(crate) is_sent: bool,
    /// It went to the store. Otherwise it asked another server for credentials.
    pub(crate) is_to_store: bool,
    /// Requests have gone to the store before, so there have been credentials.
    pub(crate) had_credentials: bool,
    /// The answer, if it was an error.
    pub(crate) answer: Option<Answer>,
}

/// The answer of a server to a request that it has not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The status of HTTP.
    pub(crate) status: u16,
    /// The code of the protocol, such as `NoSuchBucket`, or empty.
    pub(crate) code: String,
    /// The message for people, or empty.
    pub(crate) message: String,
    /// The region of the bucket, if the server says it.
    pub(crate) region: Option<String>,
}

/// The most characters that are shown of a message.
const MESSAGE_MAX: usize = 300;

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.status)?;
        if !self.code.is_empty() {
            write!(f, " {}", self.code)?;
        }
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        Ok(())
    }
}

tokio::task_local! {
    static SEEN: RefCell<Seen>;
}

/// Runs a request, and returns what was seen of it.
pub(crate) async fn observe<T>(request: impl Future<Output = T>) -> (T, Seen) {
    SEEN.scope(RefCell::new(Seen::default()), async {
        let outcome = request.await;
        (outcome, SEEN.with(RefCell::take))
    })
    .await
}

/// Makes the HTTP clients of one store.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    /// The server of the store.
    store: Arc<str>,
    had_credentials: Arc<AtomicBool>,
}

impl Connector {
    /// `endpoint` is the URL of the store.
    pub(crate) fn new(endpoint: &str) -> Connector {
        Connector { store: authority(endpoint).into(), had_credentials: Arc::default() }
    }
}

/// Returns the server of a URL and its port, which is left out where it is the usual one.
fn authority(url: &str) -> &str {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let usual = match scheme {
        "http" => ":80",
        _ => ":443",
    };
    authority.strip_suffix(usual).unwrap_or(authority)
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(Observed { client, connector: self.clone() }))
    }
}

/// A client that notes what it sees.
#[derive(Debug)]
struct Observed {
    client: HttpClient,
    connector: Connector,
}

#[async_trait::async_trait]
impl HttpService for Observed {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let url = request.uri().to_string();
        // The bucket may be the first part of the name of the server.
        let before = authority(&url).strip_suffix(&*self.connector.store);
        let is_to_store = before.is_some_and(|bucket| bucket.is_empty() || bucket.ends_with('.'));
        let had_credentials = match is_to_store {
            true => self.connector.had_credentials.swap(true, Ordering::Relaxed),
            false => self.connector.had_credentials.load(Ordering::Relaxed),
        };
        note(Seen { is_sent: true, is_to_store, had_credentials, answer: None });
        let response = self.client.execute(request).await?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let (parts, body) = response.into_parts();
        let header = |name| parts.headers.get(name).and_then(|value| value.to_str().ok());
        let code = header("x-ms-error-code").map(str::to_owned);
        let region = header("x-amz-bucket-region").map(str::to_owned);
        let body = body.bytes().await?;
        let answer = answer(status.as_u16(), &String::from_utf8_lossy(&body), code, region);
        note(Seen { is_sent: true, is_to_store, had_credentials, answer: Some(answer) });
        Ok(HttpResponse::from_parts(parts, body.into()))
    }
}

fn note(seen: Seen) {
    // Outside of `observe` nobody wants to know.
    let _ = SEEN.try_with(|noted| noted.replace(seen));
}

fn answer(status: u16, body: &str, code: Option<String>, region: Option<String>) -> Answer {
    let element = |name: &str| {
        let (_, rest) = body.split_once(&format!("<{name}>"))?;
        let (text, _) = rest.split_once(&format!("</{name}>"))?;
        Some(shown(text))
    };
    Answer {
        status,
        code: code.map(|code| shown(&code)).or_else(|| element("Code")).unwrap_or_default(),
        message: element("Message").unwrap_or_default(),
        region: region.or_else(|| element("Region")).map(|region| shown(&region)),
    }
}

/// Returns text of a server as one short line.
fn shown(text: &str) -> String {
    let text = text
        .replace("&apos;", "'")
        .replace("&quot;", "\"")
        .replace("&#39;", "'")
        .replace("&#34;", "\"");
    let text = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c });
    text.take(MESSAGE_MAX).collect()
}

/// Returns the cause of an error: the innermost one, which says what happened.
pub(crate) fn told(error: &object_store::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    shown(&cause.to_string())
}

/// Returns whether a request, or the answer to it, was lost on its way.
pub(crate) fn is_lost(error: &object_store::Error) -> bool {
    let lost = |cause: &HttpError| {
        matches!(
            cause.kind(),
            HttpErrorKind::Connect
                | HttpErrorKind::Request
                | HttpErrorKind::Timeout
                | HttpErrorKind::Interrupted
                | HttpErrorKind::Decode
                | HttpErrorKind::Unknown
        )
    };
    causes(error).filter_map(|cause| cause.downcast_ref::<HttpError>()).any(lost)
}

/// Returns why the certificate of a server was refused, if this was the cause.
pub(crate) fn certificate_error(error: &(dyn Error + 'static)) -> Option<String> {
    if let Some(rustls::Error::InvalidCertificate(why)) = error.downcast_ref() {
        return Some(why.to_string());
    }
    // An I/O error passes over the error that it holds when it is asked for its source.
    let held = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    match held {
        Some(held) => certificate_error(held),
        None => certificate_error(error.source()?),
    }
}

fn causes(error: &object_store::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    let first: &(dyn Error + 'static) = error;
    std::iter::successors(Some(first), |&cause| cause.source())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_messages_are_taken_from_answers() {
        let body = "<?xml version=\"1.0\"?><Error><Code>NoSuchBucket</Code><Message>It isn&apos;t\nthere</Message></Error>";
        let seen = answer(404, body, None, None);
        assert_eq!((seen.code.as_str(), seen.message.as_str()), ("NoSuchBucket", "It isn't there"));
        assert_eq!(seen.to_string(), "404 NoSuchBucket: It isn't there");
        let seen = answer(409, "", Some("BlobAlreadyExists".to_owned()), None);
        assert_eq!(seen.to_string(), "409 BlobAlreadyExists");
        let long = format!("<Message>{}</Message>", "x".repeat(5000));
        assert_eq!(answer(500, &long, None, None).message.len(), MESSAGE_MAX);
    }

    #[test]
    fn servers_of_urls() {
        for (url, expected) in [
            ("http://127.0.0.1:9000", "127.0.0.1:9000"),
            ("https://s3.eu-west-1.amazonaws.com/", "s3.eu-west-1.amazonaws.com"),
            ("https://server:443/bucket?list", "server"),
            ("http://server:443", "server:443"),
            ("http://[::1]:80/x", "[::1]"),
        ] {
            assert_eq!(authority(url), expected);
        }
    }
}
