//! Holds every client library to `clients/SPEC.md`; the code is the test `scenarios`.
