//! Tests `foreword`'s commands as a user runs them; `http` tests its server.

mod check_config;
mod doctor;
mod explain;
mod index;
mod ingest;
mod programs;
mod replay;
