//! A seeded machine in memory.
