//! RocksDB with a Bloom filter of 10 bits over keys and directories, leveled or universal. Shapes that its defaults
//! give as sizes follow the memtable, of which they are the same multiples as by default.

use std::ffi::{c_char, c_int, c_uchar, c_void};
use std::path::Path;
use std::ptr;

use super::{Api, CStore, NO_COMPRESSION, Object, YES, outcome, path};
use crate::store::{Memory, Outcome, Store};
use crate::workload::Key;

/// rocksdb_universal_compaction
const UNIVERSAL: c_int = 1;

#[link(name = "rocksdb")]
unsafe extern "C" {
    fn rocksdb_options_create() -> Object;
    fn rocksdb_options_set_create_if_missing(options: Object, value: c_uchar);
    fn rocksdb_options_set_write_buffer_size(options: Object, bytes: usize);
    fn rocksdb_options_set_target_file_size_base(options: Object, bytes: u64);
    fn rocksdb_options_set_max_bytes_for_level_base(options: Object, bytes: u64);
    fn rocksdb_options_set_compaction_style(options: Object, style: c_int);
    fn rocksdb_options_set_compression(options: Object, kind: c_int);
    fn rocksdb_options_set_prefix_extractor(options: Object, transform: Object);
    fn rocksdb_options_set_block_based_table_factory(options: Object, table_options: Object);
    fn rocksdb_slicetransform_create_fixed_prefix(bytes: usize) -> Object;
    fn rocksdb_block_based_options_create() -> Object;
    fn rocksdb_block_based_options_set_block_cache(table_options: Object, cache: Object);
    fn rocksdb_block_based_options_set_filter_policy(table_options: Object, policy: Object);
    fn rocksdb_cache_create_lru(bytes: usize) -> Object;
    fn rocksdb_filterpolicy_create_bloom_full(bits: f64) -> Object;
    fn rocksdb_readoptions_create() -> Object;
    fn rocksdb_readoptions_set_prefix_same_as_start(options: Object, value: c_uchar);
    fn rocksdb_writeoptions_create() -> Object;
    fn rocksdb_flushoptions_create() -> Object;
    fn rocksdb_flush(db: Object, options: Object, error: *mut *mut c_char);
    fn rocksdb_open(options: Object, name: *const c_char, error: *mut *mut c_char) -> Object;
    fn rocksdb_close(db: Object);
    fn rocksdb_put(
        db: Object,
        options: Object,
        key: *const c_char,
        key_len: usize,
        value: *const c_char,
        value_len: usize,
        error: *mut *mut c_char,
    );
    fn rocksdb_get(
        db: Object,
        options: Object,
        key: *const c_char,
        key_len: usize,
        value_len: *mut usize,
        error: *mut *mut c_char,
    ) -> *mut c_char;
    fn rocksdb_free(pointer: *mut c_void);
    fn rocksdb_create_iterator(db: Object, options: Object) -> Object;
    fn rocksdb_iter_seek(iterator: Object, key: *const c_char, len: usize);
    fn rocksdb_iter_valid(iterator: Object) -> c_uchar;
    fn rocksdb_iter_next(iterator: Object);
    fn rocksdb_iter_key(iterator: Object, len: *mut usize) -> *const c_char;
    fn rocksdb_iter_value(iterator: Object, len: *mut usize) -> *const c_char;
    fn rocksdb_iter_get_error(iterator: Object, error: *mut *mut c_char);
    fn rocksdb_iter_destroy(iterator: Object);
    fn rocksdb_property_value(db: Object, name: *const c_char) -> *mut c_char;
}

const API: Api = Api {
    put: rocksdb_put,
    get: rocksdb_get,
    free: rocksdb_free,
    create_iterator: rocksdb_create_iterator,
    iter_seek: rocksdb_iter_seek,
    iter_valid: rocksdb_iter_valid,
    iter_next: rocksdb_iter_next,
    iter_key: rocksdb_iter_key,
    iter_value: rocksdb_iter_value,
    iter_get_error: rocksdb_iter_get_error,
    iter_destroy: rocksdb_iter_destroy,
    property_value: rocksdb_property_value,
    close: rocksdb_close,
};

pub(crate) struct RocksDb(CStore);

impl RocksDb {
    pub(crate) fn open(dir: &Path, memory: Memory, universal: bool) -> Outcome<RocksDb> {
        let (dir, mut error) = (path(dir)?, ptr::null_mut());
        let memtable_bytes = memory.memtable_bytes as u64;
        // SAFETY: each object is given to calls of its own kind and never freed.
        unsafe {
            let table = rocksdb_block_based_options_create();
            let cache = rocksdb_cache_create_lru(memory.cache_bytes);
            rocksdb_block_based_options_set_block_cache(table, cache);
            let bloom = rocksdb_filterpolicy_create_bloom_full(10.0);
            rocksdb_block_based_options_set_filter_policy(table, bloom);
            let options = rocksdb_options_create();
            rocksdb_options_set_create_if_missing(options, YES);
            rocksdb_options_set_write_buffer_size(options, memory.memtable_bytes);
            rocksdb_options_set_target_file_size_base(options, memtable_bytes);
            rocksdb_options_set_max_bytes_for_level_base(options, 4 * memtable_bytes);
            rocksdb_options_set_compression(options, NO_COMPRESSION);
            let directory = rocksdb_slicetransform_create_fixed_prefix(8);
            rocksdb_options_set_prefix_extractor(options, directory);
            rocksdb_options_set_block_based_table_factory(options, table);
            if universal {
                rocksdb_options_set_compaction_style(options, UNIVERSAL);
            }
            let db = rocksdb_open(options, dir.as_ptr(), &mut error);
            outcome(error, rocksdb_free)?;
            let read_options = rocksdb_readoptions_create();
            rocksdb_readoptions_set_prefix_same_as_start(read_options, YES);
            let write_options = rocksdb_writeoptions_create();
            Ok(RocksDb(CStore { api: API, db, read_options, write_options }))
        }
    }
}

impl Store for RocksDb {
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
        let mut error = ptr::null_mut();
        // SAFETY: the store is open.
        unsafe {
            rocksdb_flush(self.0.db, rocksdb_flushoptions_create(), &mut error);
            outcome(error, rocksdb_free)
        }
    }

    fn index_bytes(&self) -> Option<u64> {
        self.0.property(c"rocksdb.estimate-table-readers-mem")?.parse().ok()
    }

    fn details(&self) -> String {
        self.0.property(c"rocksdb.levelstats").unwrap_or_default()
    }
}
