//! Tests of a candidate: the table of its transitions, a random walk of several, and the driver at an API server.

mod driver;
mod transitions;
mod walk;
