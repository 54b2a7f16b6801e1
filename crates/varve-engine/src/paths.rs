//! Paths in JSON, which is Unicode, while a path is any bytes.
//!
//! A path is written as a string if it is UTF-8, else as a list of its bytes as numbers: nothing is lost, no two paths become
//! one, and what reads JSON for people or scripts sees strings as long as names are text. Fields of reports say
//! `#[serde(with = "varve_engine::paths")]`, as the way of `serde` itself fails on what is not UTF-8.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;

/// Paths that are written, alone or several.
pub trait WritePaths {
    /// As JSON.
    fn written(&self) -> Value;
}

impl WritePaths for Path {
    fn written(&self) -> Value {
        match self.to_str() {
            Some(text) => text.into(),
            None => self.as_os_str().as_bytes().into(),
        }
    }
}

impl WritePaths for PathBuf {
    fn written(&self) -> Value {
        self.as_path().written()
    }
}

impl<T: WritePaths + ?Sized> WritePaths for &T {
    fn written(&self) -> Value {
        (**self).written()
    }
}

impl<T: WritePaths> WritePaths for Option<T> {
    fn written(&self) -> Value {
        self.as_ref().map_or(Value::Null, T::written)
    }
}

impl<T: WritePaths> WritePaths for Vec<T> {
    fn written(&self) -> Value {
        self.iter().map(T::written).collect()
    }
}

/// Paths that are read back.
pub trait ReadPaths: Sized {
    /// What [`WritePaths::written`] gave; `None` if it is something else.
    fn read(value: &Value) -> Option<Self>;
}

impl ReadPaths for PathBuf {
    fn read(value: &Value) -> Option<PathBuf> {
        match value {
            Value::String(text) => Some(text.into()),
            other => {
                Vec::<u8>::deserialize(other).ok().map(|bytes| OsString::from_vec(bytes).into())
            }
        }
    }
}

impl<T: ReadPaths> ReadPaths for Option<T> {
    fn read(value: &Value) -> Option<Option<T>> {
        if value.is_null() { Some(None) } else { T::read(value).map(Some) }
    }
}

/// For `#[serde(with)]`.
pub fn serialize<S: Serializer>(
    paths: &(impl WritePaths + ?Sized),
    serializer: S,
) -> Result<S::Ok, S::Error> {
    paths.written().serialize(serializer)
}

/// For `#[serde(with)]`.
pub fn deserialize<'a, T: ReadPaths, D: Deserializer<'a>>(deserializer: D) -> Result<T, D::Error> {
    let value = Value::deserialize(deserializer)?;
    T::read(&value).ok_or_else(|| de::Error::custom("a path is a string or a list of bytes"))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
    struct Report {
        #[serde(with = "super")]
        dir: PathBuf,
        #[serde(with = "super")]
        below: Option<PathBuf>,
    }

    #[test]
    fn any_path_comes_back_and_text_stays_text() {
        let odd = Path::new(OsStr::from_bytes(b"/mnt/\xff"));
        for (path, json) in [
            (Path::new("/mnt/\u{fc}"), "\"/mnt/\u{fc}\""),
            (odd, "[47,109,110,116,47,255]"),
            (Path::new(""), "\"\""),
        ] {
            let report = Report { dir: path.into(), below: Some(path.into()) };
            let text = serde_json::to_string(&report).unwrap();
            assert_eq!(text, format!("{{\"dir\":{json},\"below\":{json}}}"));
            assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
        }
        let report = Report { dir: odd.into(), below: None };
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
        assert_eq!(
            vec![odd, Path::new("x")].written().to_string(),
            "[[47,109,110,116,47,255],\"x\"]"
        );
        for wrong in ["{\"dir\":7}", "{\"dir\":[256]}", "{\"dir\":null}", "{\"dir\":[\"x\"]}"] {
            assert!(serde_json::from_str::<Report>(wrong).is_err(), "{wrong}");
        }
    }
}
