//! The bytes of a store: log records, blocks, tables, filters, manifest edits; no I/O
