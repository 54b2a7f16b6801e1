//! LevelDB with a Bloom filter of 10 bits. Its C interface cannot flush: what the last memtable holds stays there.

use std::ffi::{c_char, c_int, c_uchar, c_void};
use std::path::Path;
use std::ptr;

use super::{Api, CStore, NO_COMPRESSION, Object, YES, outcome, path};
use crate::store::{Memory, Outcome, Store};
use crate::workload::Key;

#[link(name = "leveldb")]
unsafe extern "C" {
    fn leveldb_options_create() -> Object;
    fn leveldb_options_set_create_if_missing(options: Object, value: c_uchar);
    fn leveldb_options_set_write_buffer_size(options: Object, bytes: usize);
    fn leveldb_options_set_compression(options: Object, kind: c_int);
    fn leveldb_options_set_cache(options: Object, cache: Object);
    fn leveldb_options_set_filter_policy(options: Object, policy: Object);
    fn leveldb_cache_create_lru(bytes: usize) -> Object;
    fn leveldb_filterpolicy_create_bloom(bits: c_int) -> Object;
    fn leveldb_readoptions_create() -> Object;
    fn leveldb_writeoptions_create() -> Object;
    fn leveldb_open(options: Object, name: *const c_char, error: *mut *mut c_char) -> Object;
    fn leveldb_close(db: Object);
    fn leveldb_put(
        db: Object,
        options: Object,
        key: *const c_char,
        key_len: usize,
        value: *const c_char,
        value_len: usize,
        error: *mut *mut c_char,
    );
    fn leveldb_get(
        db: Object,
        options: Object,
        key: *const c_char,
        key_len: usize,
        value_len: *mut usize,
        error: *mut *mut c_char,
    ) -> *mut c_char;
    fn leveldb_free(pointer: *mut c_void);
    fn leveldb_create_iterator(db: Object, options: Object) -> Object;
    fn leveldb_iter_seek(iterator: Object, key: *const c_char, len: usize);
    fn leveldb_iter_valid(iterator: Object) -> c_uchar;
    fn leveldb_iter_next(iterator: Object);
    fn leveldb_iter_key(iterator: Object, len: *mut usize) -> *const c_char;
    fn leveldb_iter_value(iterator: Object, len: *mut usize) -> *const c_char;
    fn leveldb_iter_get_error(iterator: Object, error: *mut *mut c_char);
    fn leveldb_iter_destroy(iterator: Object);
    fn leveldb_property_value(db: Object, name: *const c_char) -> *mut c_char;
}

const API: Api = Api {
    put: leveldb_put,
    get: leveldb_get,
    free: leveldb_free,
    create_iterator: leveldb_create_iterator,
    iter_seek: leveldb_iter_seek,
    iter_valid: leveldb_iter_valid,
    iter_next: leveldb_iter_next,
    iter_key: leveldb_iter_key,
    iter_value: leveldb_iter_value,
    iter_get_error: leveldb_iter_get_error,
    iter_destroy: leveldb_iter_destroy,
    property_value: leveldb_property_value,
    close: leveldb_close,
};

pub(crate) struct LevelDb(CStore);

impl LevelDb {
    pub(crate) fn open(dir: &Path, memory: Memory) -> Outcome<LevelDb> {
        let (dir, mut error) = (path(dir)?, ptr::null_mut());
        // SAFETY: each object is given to calls of its own kind and never freed.
        unsafe {
            let options = leveldb_options_create();
            leveldb_options_set_create_if_missing(options, YES);
            leveldb_options_set_write_buffer_size(options, memory.memtable_bytes);
            leveldb_options_set_compression(options, NO_COMPRESSION);
            leveldb_options_set_cache(options, leveldb_cache_create_lru(memory.cache_bytes));
            leveldb_options_set_filter_policy(options, leveldb_filterpolicy_create_bloom(10));
            let db = leveldb_open(options, dir.as_ptr(), &mut error);
            outcome(error, leveldb_free)?;
            let (read_options, write_options) =
                (leveldb_readoptions_create(), leveldb_writeoptions_create());
            Ok(LevelDb(CStore { api: API, db, read_options, write_options }))
        }
    }
}

impl Store for LevelDb {
    fn get(&self, key: &Key) -> Outcome<bool> {
        self.0.get(key)
    }

    fn put(&self, key: &Key, value: &[u8]) -> Outcome<()> {
        self.0.put(key, value)
    }

    fn scan(&self, directory: u64) -> Outcome<u64> {
        self.0.scan(directory)
    }

    fn flush(&self) -> Outcome<()> {
        Ok(())
    }

    fn index_bytes(&self) -> Option<u64> {
        None
    }

    fn details(&self) -> String {
        self.0.property(c"leveldb.stats").unwrap_or_default()
    }
}
