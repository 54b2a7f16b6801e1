//! RocksDB and LevelDB through their C interfaces, which have the same shape: [`CStore`] is what both share, the
//! modules below say how each is opened. The only other unsafe code is in the meter.

pub(crate) mod leveldb;
pub(crate) mod rocksdb;

use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_void};
use std::path::Path;
use std::ptr;

use crate::store::Outcome;
use crate::workload::Key;

/// Any object of the library.
type Object = *mut c_void;

/// The functions of a library that a run calls.
struct Api {
    put: unsafe extern "C" fn(
        Object,
        Object,
        *const c_char,
        usize,
        *const c_char,
        usize,
        *mut *mut c_char,
    ),
    get: unsafe extern "C" fn(
        Object,
        Object,
        *const c_char,
        usize,
        *mut usize,
        *mut *mut c_char,
    ) -> *mut c_char,
    free: unsafe extern "C" fn(*mut c_void),
    create_iterator: unsafe extern "C" fn(Object, Object) -> Object,
    iter_seek: unsafe extern "C" fn(Object, *const c_char, usize),
    iter_valid: unsafe extern "C" fn(Object) -> c_uchar,
    iter_next: unsafe extern "C" fn(Object),
    iter_key: unsafe extern "C" fn(Object, *mut usize) -> *const c_char,
    iter_value: unsafe extern "C" fn(Object, *mut usize) -> *const c_char,
    iter_get_error: unsafe extern "C" fn(Object, *mut *mut c_char),
    iter_destroy: unsafe extern "C" fn(Object),
    property_value: unsafe extern "C" fn(Object, *const c_char) -> *mut c_char,
    close: unsafe extern "C" fn(Object),
}

/// An open store. Options and caches live as long as the process: there are a few of each.
struct CStore {
    api: Api,
    db: Object,
    read_options: Object,
    write_options: Object,
}

/// The name of a directory for the library.
fn path(dir: &Path) -> Outcome<CString> {
    Ok(CString::new(dir.as_os_str().as_encoded_bytes())?)
}

/// What a call that may have set `error` came to.
///
/// # Safety
/// `error` is null or a string that `free` frees.
unsafe fn outcome(error: *mut c_char, free: unsafe extern "C" fn(*mut c_void)) -> Outcome<()> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: as the caller promises.
    let text = unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned();
    unsafe { free(error.cast()) };
    Err(text.into())
}

impl CStore {
    fn put(&self, key: &Key, value: &[u8]) -> Outcome<()> {
        let mut error = ptr::null_mut();
        // SAFETY: the objects live as long as `self`, lengths are those of the slices, which are only read.
        unsafe {
            (self.api.put)(
                self.db,
                self.write_options,
                key.as_ptr().cast(),
                key.len(),
                value.as_ptr().cast(),
                value.len(),
                &mut error,
            );
            outcome(error, self.api.free)
        }
    }

    fn get(&self, key: &Key) -> Outcome<bool> {
        let (mut error, mut len) = (ptr::null_mut(), 0);
        // SAFETY: as in `put`; the value is the library's to free.
        unsafe {
            let (key, key_len) = (key.as_ptr().cast(), key.len());
            let value =
                (self.api.get)(self.db, self.read_options, key, key_len, &mut len, &mut error);
            outcome(error, self.api.free)?;
            if !value.is_null() {
                (self.api.free)(value.cast());
            }
            Ok(!value.is_null())
        }
    }

    fn scan(&self, directory: u64) -> Outcome<u64> {
        let prefix = directory.to_be_bytes();
        let (mut rows, mut error) = (0, ptr::null_mut());
        // SAFETY: the iterator is destroyed before the store is closed; a key is valid until it moves.
        unsafe {
            let iterator = (self.api.create_iterator)(self.db, self.read_options);
            (self.api.iter_seek)(iterator, prefix.as_ptr().cast(), prefix.len());
            while (self.api.iter_valid)(iterator) != 0 {
                let (mut key_len, mut value_len) = (0, 0);
                let key = (self.api.iter_key)(iterator, &mut key_len);
                if key_len < 8 || std::slice::from_raw_parts(key.cast::<u8>(), 8) != prefix {
                    break;
                }
                (self.api.iter_value)(iterator, &mut value_len);
                rows += 1;
                (self.api.iter_next)(iterator);
            }
            (self.api.iter_get_error)(iterator, &mut error);
            (self.api.iter_destroy)(iterator);
            outcome(error, self.api.free)?;
        }
        Ok(rows)
    }

    fn property(&self, name: &CStr) -> Option<String> {
        // SAFETY: the value is null or a string that is ours to free.
        unsafe {
            let value = (self.api.property_value)(self.db, name.as_ptr());
            let text = (!value.is_null()).then(|| CStr::from_ptr(value).to_string_lossy().into());
            (self.api.free)(value.cast());
            text
        }
    }
}

impl Drop for CStore {
    fn drop(&mut self) {
        // SAFETY: nothing of the store is in use any more.
        unsafe { (self.api.close)(self.db) };
    }
}

/// Flags of the C interfaces.
const YES: c_uchar = 1;
const NO_COMPRESSION: c_int = 0;
