//! A file of a batch, and behind the first zero byte what a killed run may have left of its answers.

use foreword_ordering::RawConfig;
use foreword_simulation::{
    AnswerLine, BatchAnswer, BatchAnswers, BatchIndex, BatchLimits, BatchOrder, BatchOrderer,
    BatchSchedule, BatchUsage, MAX_LINE_BYTES, RequestLine, URLS, answer_line,
};

pub(crate) fn run(input: &[u8]) {
    let cut = input.iter().position(|byte| *byte == 0);
    let (file, output) = input.split_at(cut.unwrap_or(input.len()));
    let mut orderer =
        BatchOrderer::new(&RawConfig::default(), BatchOrder::Plan).expect("the defaults are valid");
    let limits = BatchLimits {
        urls: &URLS,
        requests: MAX_REQUESTS,
        line_bytes: MAX_LINE_BYTES,
    };
    let mut last = 0;
    let mut is_whole = true;
    let wrong = |error: foreword_simulation::BatchError| {
        let lines = file.iter().filter(|byte| **byte == b'\n').count() as u64 + 1;
        assert!((1..=lines).contains(&error.number));
        is_whole = false;
        true
    };
    let progress = |bytes| {
        assert!(bytes >= last && bytes <= file.len() as u64);
        last = bytes;
        true
    };
    let index = BatchIndex::read(file, limits, Some(&mut orderer), wrong, progress);
    let index = index.expect("bytes can be read");
    if !is_whole {
        return;
    }
    let requests = index.len() as u32;
    for line in 0..requests {
        let request = request(file, &index, line);
        assert_eq!(index.find(&request.custom_id), Some(line));
        let answer = BatchAnswer::Response {
            status: 200,
            request_id: &request.url,
            body: request.body.as_bytes(),
        };
        let text = answer_line("id", &request.custom_id, answer);
        assert_eq!(
            text.iter().position(|byte| *byte == b'\n'),
            Some(text.len() - 1)
        );
        let read = AnswerLine::parse(&text).expect("what was written is read");
        assert_eq!(
            (read.custom_id, read.status),
            (request.custom_id, Some(200))
        );
    }

    let mut answers = BatchAnswers::none(index.len());
    let output = output.get(1..).unwrap_or_default();
    let read = answers.read(output, &index).expect("bytes can be read");
    assert!(answers.whole_bytes <= output.len() as u64);
    if read.is_ok() {
        let torn = &output[answers.whole_bytes as usize..];
        assert!(
            !torn.contains(&b'\n'),
            "a whole line was taken for a torn one"
        );
    }
    for order in [BatchOrder::Input, BatchOrder::Plan] {
        let is_pending = |line: u32| !answers.is_answered(line);
        let mut schedule = BatchSchedule::new(&index, order, 2, is_pending);
        let mut asked = answers.clone();
        for worker in [0, 1, 0] {
            while let Some(task) = schedule.next(&index, worker) {
                assert!(!asked.is_answered(task.line), "asked twice");
                asked.add(task.line, true, BatchUsage::default());
                let request = request(file, &index, task.line);
                if let Some(planned) = &task.documents {
                    let sent = orderer.order_as(request.body.as_bytes(), planned);
                    let sent = sent.as_deref().unwrap_or(request.body.as_bytes());
                    let sent = serde_json::from_slice::<serde::de::IgnoredAny>(sent);
                    assert!(sent.is_ok(), "JSON stays JSON");
                }
            }
        }
        assert!(
            (0..requests).all(|line| asked.is_answered(line)),
            "never asked"
        );
    }
}

fn request<'a>(file: &'a [u8], index: &BatchIndex, line: u32) -> RequestLine<'a> {
    let (offset, bytes) = index.place(line).expect("it is in the index");
    let (start, bytes) = (offset as usize, bytes as usize);
    RequestLine::parse(&file[start..start + bytes], &URLS).expect("it was read before")
}

const MAX_REQUESTS: u32 = 64;

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let line = |id: &str, url: &str, body: &str| {
        format!(
            "{{\"custom_id\":\"{id}\",\"method\":\"POST\",\"url\":\"{url}\",\"body\":{body}}}\n"
        )
    };
    let chat = |documents: &str| {
        format!(
            r#"{{"model":"m","messages":[{{"role":"system","content":"S"}},{{"role":"user","content":"Why?"}}],"documents":[{documents}]}}"#
        )
    };
    let [a, b, c] = ["a", "b", "c"].map(|id| format!(r#"{{"id":"{id}","text":"text of {id}"}}"#));
    let chats = URLS[0];
    let file = [
        line("1", chats, &chat(&format!("{a},{b}"))),
        "\n".to_owned(),
        line("2", chats, &chat(&c)),
        line("\\u0033", chats, &chat(&format!("{c},{b},{a}"))),
        line("4", URLS[1], r#"{"prompt": "x"}"#),
        line("5", URLS[2], r#"{"input": ["x"], "stream": false}"#),
        line("6", URLS[3], r#"{"input": "x", "instructions": "S"}"#),
    ]
    .concat();
    let answer = |id: &str| {
        let answer = BatchAnswer::Error {
            code: "c",
            message: "m\n",
        };
        String::from_utf8_lossy(&answer_line("r", id, answer)).into_owned()
    };
    let served = "{\"custom_id\":\"2\",\"response\":{\"status_code\":200,\"body\":{\"usage\":{\"input_tokens\":5}}}}\n";
    [
        file.clone(),
        format!("{file}\0{}{served}{{\"half", answer("3")),
        format!("{file}\0{}", answer("7")),
        line("1", chats, r#"{"stream": true}"#),
        line("1", "/v1/x", "[]"),
        format!("{}{}", line("1", chats, "{}"), line("1", chats, "{}")),
    ]
    .map(String::into_bytes)
    .into()
}
