//! Host calls for properties of the proxy and the request, by path.

use super::{Calls, bytes, found, give, refused};
use crate::abi::{Headers, status};
use crate::state::State;
use wasmtime::Result;

pub(super) fn define(calls: &mut Calls<'_>) -> Result<()> {
    calls.define("proxy_get_property", |vm, [path, size, at, size_at]| {
        let path = bytes(vm, path, size)?;
        let value = found(value(vm.data(), without_end(&path)))?;
        give(vm, &value, at, size_at)
    })?;
    calls.define("proxy_set_property", |vm, [path, path_size, at, size]| {
        let path = bytes(vm, path, path_size)?;
        let value = bytes(vm, at, size)?;
        let properties = &mut vm.data_mut().stream.properties;
        // A property, like Envoy's filter state, can be written only once.
        if properties.contains_key(without_end(&path)) {
            return refused(status::BAD_ARGUMENT);
        }
        properties.insert(without_end(&path).to_vec(), value);
        Ok(())
    })
}

fn without_end(path: &[u8]) -> &[u8] {
    path.strip_suffix(&[0]).unwrap_or(path)
}

/// Returns a property's value, by Envoy's attribute names; `None` if it is unknown.
fn value(state: &State, path: &[u8]) -> Option<Vec<u8>> {
    let stream = &state.stream;
    if let Some(value) = stream.properties.get(path) {
        return Some(value.clone());
    }
    let header = |headers: &Option<Headers>, name: &[u8]| {
        let mut headers = headers.iter().flatten();
        let (_, value) = headers.find(|(known, _)| *known == name)?;
        Some(value.clone())
    };
    let request = |name: &[u8]| header(&stream.request_headers, name);
    let mut parts = path.splitn(3, |byte| *byte == 0);
    let mut part = || parts.next();
    match (part()?, part(), part()) {
        (b"plugin_name" | b"plugin_root_id", None, None) => Some(PLUGIN.into()),
        (b"plugin_vm_id", None, None) => Some(Vec::new()),
        (b"request", Some(b"path"), None) => request(b":path"),
        (b"request", Some(b"url_path"), None) => {
            let mut path = request(b":path")?;
            let end = path.iter().position(|byte| *byte == b'?');
            path.truncate(end.unwrap_or(path.len()));
            Some(path)
        }
        (b"request", Some(b"method"), None) => request(b":method"),
        (b"request", Some(b"host"), None) => request(b":authority"),
        (b"request", Some(b"scheme"), None) => request(b":scheme"),
        (b"request", Some(b"protocol"), None) => Some(b"HTTP/1.1".to_vec()),
        (b"request", Some(b"headers"), Some(name)) => request(&name.to_ascii_lowercase()),
        (b"response", Some(b"headers"), Some(name)) => {
            header(&stream.response_headers, &name.to_ascii_lowercase())
        }
        (b"response", Some(b"code"), None) => {
            let status = header(&stream.response_headers, b":status")?;
            let code: u64 = str::from_utf8(&status).ok()?.parse().ok()?;
            Some(code.to_le_bytes().into())
        }
        _ => None,
    }
}

/// The plugin's name and root id.
const PLUGIN: &[u8] = b"rehearsed";
