//! The protocol of metadata servers without sockets, threads or clocks: it takes messages and times, and returns decisions.
