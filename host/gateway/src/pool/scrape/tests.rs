use super::*;

#[test]
fn the_load_is_read_from_each_servers_names() {
    let vllm = "# HELP vllm:num_requests_waiting Waiting.\n# TYPE vllm:num_requests_waiting gauge\n\
                vllm:num_requests_waiting{engine=\"0\",model_name=\"a}\\\" 9\"} 2.0\n\
                vllm:num_requests_waiting{engine=\"1\",model_name=\"m\"} 1.0 1700000000\n\
                vllm:num_requests_waiting_by_reason{reason=\"capacity\"} 50\n\
                vllm:num_requests_running{engine=\"0\"} 7\n\
                vllm:kv_cache_usage_perc{engine=\"0\"} 0.25\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.5\n";
    let load_of = |waiting, running, kv_usage| {
        Some(Load {
            waiting,
            running,
            kv_usage,
        })
    };
    assert_eq!(load(vllm.as_bytes()), load_of(3, 7, 0.5));
    let sglang = "sglang:num_queue_reqs 4\r\nsglang:num_running_reqs 5\nsglang:token_usage 0.9";
    assert_eq!(load(sglang.as_bytes()), load_of(4, 5, 0.9));
}

#[test]
fn other_pages_and_wrong_values_are_no_load() {
    for page in [
        &b""[..],
        b"<html>404</html>",
        b"vllm:num_requests_running 5\n",
        b"vllm:num_requests_waiting NaN\n",
        b"vllm:num_requests_waiting -1\n",
        b"vllm:num_requests_waiting{a=\"b 3\n",
        b"vllm:num_requests_waiting{a=\"\xff\"} \xff\n",
        b"vllm:num_requests_waiting",
    ] {
        assert_eq!(load(page), None, "{}", String::from_utf8_lossy(page));
    }
    let huge = load(b"vllm:num_requests_waiting 1e300\nvllm:num_requests_waiting 5\n");
    assert_eq!(huge.unwrap().waiting, u64::MAX);
}

/// Truncated and corrupted pages parse without a panic.
#[test]
fn damaged_pages_are_read_as_far_as_they_go() {
    let page = b"vllm:num_requests_waiting{engine=\"0\",model_name=\"a}\\\"\"} 2.0\nsglang:token_usage 0.9\n";
    for end in 0..=page.len() {
        load(&page[..end]);
        load(&page[end..]);
    }
    for at in 0..page.len() {
        for byte in [0, b'"', b'\\', b'{', b'}', b' ', b'\n', b'9', b'e', 0xff] {
            let mut changed = page.to_vec();
            changed[at] = byte;
            let waiting = load(&changed).unwrap_or_default().waiting;
            assert!(waiting < 1_000, "{}", String::from_utf8_lossy(&changed));
        }
    }
}
