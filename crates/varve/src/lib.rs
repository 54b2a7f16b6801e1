//! Varve's command line and open(uri)
