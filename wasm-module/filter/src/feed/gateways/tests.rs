//! The exchange between gateways, against the scripted host.

use foreword_ordering::document::Fingerprint;
use foreword_ordering::feed::{Event, FeedKey, SealedPush, TenantKey};
use foreword_ordering::tree::Scope;
use foreword_ordering::{Config, EngineId, Orderer, Residency, Tenant};

use super::*;
use crate::engines::FeedConfig;
use crate::feed::call::FIRST_PAUSE_MS;
use crate::tests::scripted::ScriptedHost;

const US: GatewayId = GatewayId(1);

struct Side {
    host: ScriptedHost,
    gateways: Gateways,
    key: Option<FeedKey>,
}

impl Side {
    fn new(key: Option<&FeedKey>) -> Self {
        let host = ScriptedHost::default();
        Self {
            gateways: Gateways::new(&host, US, 9, "e").unwrap(),
            host,
            key: key.cloned(),
        }
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut Gateways, &ScriptedHost, &Link<'_>) -> T) -> T {
        let config = FeedConfig {
            cluster: "engine".to_owned(),
            token: Some("secret".to_owned()),
            key: None,
        };
        let link = Link {
            config: &config,
            key: self.key.as_ref(),
            name: "e",
        };
        act(&mut self.gateways, &self.host, &link)
    }

    fn listen(&mut self, now_ms: u64) {
        self.with(|gateways, host, link| gateways.poll(host, now_ms, link));
    }

    fn tell(&mut self, now_ms: u64, updates: &[PeerUpdate], outstanding: u64) -> u64 {
        let taken = Outgoing {
            updates: updates.iter().map(PeerUpdate::encode).collect(),
            has_load: outstanding > 0,
            dropped: 0,
        };
        self.with(|gateways, host, link| gateways.push(host, now_ms, link, taken, || outstanding))
    }

    fn answer(
        &mut self,
        now_ms: u64,
        call: u32,
        status: u16,
        body: &[u8],
    ) -> Option<ExchangeResult> {
        let answer = CallResponse {
            status: Some(status),
            body: Some(body),
        };
        self.with(|gateways, host, link| gateways.on_answer(host, now_ms, call, answer, link))
    }

    /// Receives these pushes in the response to a call made for it.
    fn hear(&mut self, now_ms: u64, others: u32, pushes: Vec<SealedPush>) -> ExchangeResult {
        self.listen(now_ms);
        let call = u32::try_from(self.host.calls().len()).unwrap() - 1;
        let body = Pushes {
            epoch: Epoch(5),
            next: 40,
            others,
            pushes,
        };
        let body = serde_json::to_vec(&body).unwrap();
        let heard = self.answer(now_ms, call, 200, &body).unwrap();
        self.look(now_ms, true);
        heard
    }

    fn look(&mut self, now_ms: u64, leads: bool) {
        self.with(|gateways, host, _| gateways.look(host, now_ms, leads));
    }

    fn paths(&self) -> Vec<String> {
        let value = |headers: &[(String, String)], wanted: &str| {
            let found = headers.iter().find(|(name, _)| name == wanted);
            found.unwrap().1.clone()
        };
        let calls = self.host.calls().into_iter();
        calls
            .map(|(_, headers)| {
                assert_eq!(value(&headers, "authorization"), "Bearer secret");
                format!(
                    "{} {}",
                    value(&headers, ":method"),
                    value(&headers, ":path")
                )
            })
            .collect()
    }

    /// The last push.
    fn pushed(&self) -> Push {
        let body = self.host.call_bodies().pop().unwrap();
        let sealed: SealedPush = serde_json::from_slice(&body).unwrap();
        sealed.open(self.key.as_ref()).unwrap()
    }
}

fn update(model: &str) -> PeerUpdate {
    PeerUpdate::Residency(Residency {
        engine: EngineId(3),
        model: model.into(),
        events: vec![Event::Removed {
            tenant: TenantKey::default(),
            scope: Scope(1),
            path: vec![Fingerprint(2)],
        }],
    })
}

fn push(gateway: u64, audience: u64, outstanding: u64, models: &[&str]) -> Push {
    Push {
        gateway: GatewayId(gateway),
        number: gateway,
        audience,
        outstanding,
        updates: models.iter().map(|model| update(model).encode()).collect(),
    }
}

/// Returns another gateway's push of this number, with only a load.
fn load_of_push(number: u64, outstanding: u64) -> SealedPush {
    let push = Push {
        number,
        ..push(2, 9, outstanding, &[])
    };
    push.sealed(None)
}

#[test]
fn a_gateway_listens_from_where_it_was_and_tells_only_while_somebody_listens() {
    let mut side = Side::new(None);
    for now in [0, 10, 20] {
        side.listen(now);
    }
    let first = "GET /v1/kv/records?gateway=0000000000000001&wait_ms=5000";
    assert_eq!(side.paths(), [first]);
    assert!(!side.gateways.may_push(20));
    side.hear(30, 0, Vec::new());
    assert!(!side.gateways.may_push(30) && !side.gateways.has_listeners());
    side.listen(40);
    assert_eq!(
        side.paths()[1],
        format!("{first}&epoch=0000000000000005&since=40&others=0")
    );
    side.hear(50, 2, Vec::new());
    assert!(side.gateways.may_push(50) && side.gateways.has_listeners());
    // If the server does not respond, gateways count as not listening after a while.
    side.listen(60);
    side.answer(60, 2, 503, b"").unwrap();
    side.look(6_050, true);
    assert!(!side.gateways.may_push(6_050));
}

#[test]
fn a_worker_that_does_not_lead_tells_those_that_the_leader_knows_of() {
    let mut side = Side::new(None);
    let mut other = Gateways::new(&side.host, US, 9, "e").unwrap();
    other.look(&side.host, 0, false);
    assert!(!other.has_listeners());
    side.hear(10, 1, vec![push(2, 9, 70, &[]).sealed(None)]);
    other.look(&side.host, 100, false);
    assert!(other.may_push(100));
    // A worker that no longer leads drops others' loads, and still pushes.
    assert_eq!(side.gateways.changed_load(20), Some(70));
    side.look(200, false);
    assert_eq!(side.gateways.changed_load(200), None);
    assert!(side.gateways.may_push(200));
    side.look(6_010, false);
    other.look(&side.host, 6_010, false);
    assert!(!side.gateways.may_push(6_010) && !other.may_push(6_010));
}

#[test]
fn one_push_is_under_way_at_a_time_and_says_what_is_new() {
    let key = FeedKey::new(&[7; 32]);
    let mut side = Side::new(Some(&key));
    side.hear(0, 1, Vec::new());
    assert_eq!(side.tell(0, &[], 0), 0);
    assert_eq!(side.host.calls().len(), 1, "there is nothing to tell");
    side.tell(10, &[update("a"), update("b")], 700);
    assert!(!side.gateways.may_push(20));
    let told = side.pushed();
    assert_eq!(
        (told.gateway, told.audience, told.outstanding),
        (US, 9, 700)
    );
    assert_eq!(told.updates, [update("a").encode(), update("b").encode()]);
    assert_eq!(side.paths()[1], "POST /v1/kv/records");
    let heard = side.answer(30, 1, 200, b"{}").unwrap();
    assert_eq!((heard.sent, heard.lost), (2, 0));

    // A load of zero is pushed once.
    for (now, outstanding, pushes) in [(40, 700, 1), (1_020, 600, 1), (1_030, 0, 1), (9_000, 0, 0)]
    {
        assert_eq!(side.gateways.repeats_load(now, true), now == 9_000);
        assert!(!side.gateways.repeats_load(now, false));
        let before = side.host.calls().len();
        side.tell(now, &[], outstanding);
        assert_eq!(side.host.calls().len() - before, pushes, "at {now}");
        if pushes > 0 {
            let call = u32::try_from(before).unwrap();
            assert_eq!(side.pushed().outstanding, outstanding);
            side.answer(now, call, 200, b"{}").unwrap();
        }
    }
}

#[test]
fn a_push_that_fails_is_lost_and_its_load_told_again_after_a_pause() {
    let mut side = Side::new(None);
    side.hear(0, 1, Vec::new());
    side.tell(0, &[update("a")], 700);
    let heard = side.answer(10, 1, 429, b"{}").unwrap();
    assert_eq!((heard.sent, heard.lost), (0, 1));
    assert!(!side.gateways.may_push(509) && side.gateways.may_push(510));
    // The worker repeats its own failed push, whether it leads or not, even for a load of zero.
    assert!(side.gateways.repeats_load(510, false));
    side.tell(510, &[], 0);
    assert_eq!(side.host.calls().len(), 3);
    side.answer(520, 2, 200, b"{}").unwrap();
    assert!(!side.gateways.repeats_load(530, false));
    // A cluster that does not exist.
    side.host.refuse("call");
    assert_eq!(side.tell(530, &[update("b")], 0), 1);
    assert!(side.gateways.repeats_load(530, false));
    let logged = side.host.log_text();
    assert_eq!(
        logged.matches("the push was refused").count(),
        1,
        "{logged}"
    );
}

#[test]
fn a_server_that_does_not_know_the_route_is_left_alone_quietly() {
    for status in [404, 405, 501] {
        let mut side = Side::new(None);
        side.listen(0);
        side.answer(0, 0, status, b"{}").unwrap();
        for now in (0..LONGEST_PAUSE_MS).step_by(1_000) {
            side.listen(now);
        }
        assert_eq!(side.host.calls().len(), 1);
        assert_eq!(side.host.log_text(), "");
        side.listen(LONGEST_PAUSE_MS);
        assert_eq!(side.host.calls().len(), 2);
    }
}

#[test]
fn what_others_tell_is_heard_once_and_what_is_for_others_is_not() {
    let key = FeedKey::new(&[7; 32]);
    let mut side = Side::new(Some(&key));
    let mut garbled = push(5, 9, 0, &["e"]);
    garbled.updates.push(b"noise".to_vec());
    let pushes = [
        push(2, 9, 0, &["a", "b"]),
        // Its own push.
        push(US.0, 9, 500, &["c"]),
        // A push for another audience.
        push(3, 8, 70, &["d"]),
        garbled,
    ];
    let mut sealed: Vec<SealedPush> = pushes.iter().map(|push| push.sealed(Some(&key))).collect();
    // Pushes with another key, and without one.
    sealed.push(push(6, 9, 0, &["f"]).sealed(Some(&FeedKey::new(b"x"))));
    sealed.push(push(7, 9, 0, &["g"]).sealed(None));
    let heard = side.hear(0, 4, sealed);
    assert_eq!(heard.updates, ["a", "b", "e"].map(update));
    assert_eq!((heard.sent, heard.lost), (0, 3));
    assert_eq!(side.gateways.changed_load(0), Some(70));
}

#[test]
fn what_may_hold_a_text_or_is_no_gateways_to_tell_is_dropped_and_counted() {
    let body = br#"{"documents": [{"id": "a", "text": "b"}], "messages": [{"role": "user", "content": "?"}]}"#;
    let config = Config::from_json(br#"{"conversation": {"pin": true}}"#).unwrap();
    let rewrite = Orderer::new(config).rewrite(Tenant::default(), body);
    let record = PeerUpdate::OrderingRecord(rewrite.unwrap().record);
    let residency = |event| {
        PeerUpdate::Residency(Residency {
            engine: EngineId(0),
            model: "m".into(),
            events: vec![event],
        })
    };
    let stored = Event::Stored {
        tenant: TenantKey::default(),
        scope: Scope(1),
        path: vec![(Fingerprint(2), 300)],
    };
    let mut side = Side::new(None);
    let hostile = Push {
        updates: vec![
            record.encode(),
            residency(stored).encode(),
            residency(Event::Cleared).encode(),
            record.encode_remote(),
        ],
        ..push(2, 9, 0, &[])
    };
    let heard = side.hear(0, 1, vec![hostile.sealed(None)]);
    assert!(matches!(heard.updates[..], [PeerUpdate::Remote(_)]));
    assert_eq!(heard.lost, 3);
}

#[test]
fn the_load_of_others_is_what_each_told_last_for_as_long_as_it_is_repeated() {
    let mut side = Side::new(None);
    let load = |gateway, tokens| push(gateway, 9, tokens, &[]).sealed(None);
    assert_eq!(side.gateways.changed_load(0), None);
    side.hear(0, 2, vec![load(2, 100), load(3, 50), load(2, 30)]);
    assert_eq!(side.gateways.changed_load(0), Some(80));
    assert_eq!(side.gateways.changed_load(10), None);
    // Workers drop it too, so it is published again.
    assert_eq!(side.gateways.changed_load(REPEAT_MS), Some(80));
    side.hear(2_000, 2, vec![load(3, 0)]);
    assert_eq!(side.gateways.changed_load(2_000), Some(30));
    side.hear(4_000, 2, vec![load(3, 9)]);
    assert_eq!(side.gateways.changed_load(FORGET_MS - 1), Some(39));
    assert_eq!(side.gateways.changed_load(FORGET_MS), Some(9));
    assert_eq!(side.gateways.changed_load(9_000), Some(0));
    assert_eq!(side.gateways.changed_load(99_000), None);
}

#[test]
fn a_push_that_was_overtaken_does_not_bring_an_old_load_back() {
    let mut side = Side::new(None);
    side.hear(
        0,
        1,
        vec![
            load_of_push(10, 100),
            load_of_push(12, 0),
            load_of_push(11, 50),
        ],
    );
    assert_eq!(side.gateways.changed_load(0), None);
    side.hear(10, 1, vec![load_of_push(13, 70), load_of_push(13, 70)]);
    assert_eq!(side.gateways.changed_load(10), Some(70));
    // Its clock was set back; that is forgotten when its last load expires.
    side.hear(20, 1, vec![load_of_push(5, 90)]);
    assert_eq!(side.gateways.changed_load(20), None);
    side.hear(10 + FORGET_MS, 1, vec![load_of_push(6, 90)]);
    assert_eq!(side.gateways.changed_load(10 + FORGET_MS), Some(90));
}

#[test]
fn a_clock_that_was_set_back_keeps_no_load_and_stops_no_call() {
    let mut side = Side::new(None);
    let (before, after) = (9_000_000, 5_000_000);
    side.hear(before, 1, vec![load_of_push(before, 100)]);
    assert_eq!(side.gateways.changed_load(before), Some(100));
    side.tell(before, &[], 700);
    side.answer(before, 1, 200, b"{}").unwrap();
    assert!(side.gateways.repeats_load(after, true));
    // Both clocks were set back, so the number is lower.
    side.hear(after, 1, vec![load_of_push(after, 30)]);
    assert_eq!(side.gateways.changed_load(after), Some(30));
    assert!(side.gateways.may_push(after));
    // The same during a call, and after one that failed.
    side.listen(after);
    side.listen(before);
    assert_eq!(side.host.calls().len(), 5);
    side.answer(before, 4, 503, b"").unwrap();
    side.listen(after);
    assert_eq!(side.host.calls().len(), 6);
}

#[test]
fn of_too_many_gateways_those_with_load_count() {
    let mut side = Side::new(None);
    let idle = (0..MAX_GATEWAYS as u64 + 9).map(|id| push(id + 10, 9, 0, &[]).sealed(None));
    side.hear(0, 1, idle.collect());
    let busy = (0..MAX_GATEWAYS as u64).map(|id| push(id + 9_000, 9, 2, &[]).sealed(None));
    side.hear(1, 1, busy.collect());
    let all = 2 * MAX_GATEWAYS as u64;
    assert_eq!(side.gateways.changed_load(1), Some(all));
    side.hear(2, 1, vec![push(5, 9, 70, &[]).sealed(None)]);
    assert_eq!(side.gateways.changed_load(2), None, "there is no room");
}

#[test]
fn it_listens_again_at_once_after_news_or_a_wait() {
    let mut side = Side::new(None);
    assert!(!side.hear(0, 1, Vec::new()).listens_again);
    assert!(
        side.hear(10, 1, vec![push(2, 9, 0, &[]).sealed(None)])
            .listens_again
    );
    side.listen(20);
    let call = u32::try_from(side.host.calls().len()).unwrap() - 1;
    let nothing = Pushes {
        epoch: Epoch(5),
        next: 40,
        others: 1,
        pushes: Vec::new(),
    };
    let nothing = serde_json::to_vec(&nothing).unwrap();
    let waited = side.answer(20 + WAIT_MS, call, 200, &nothing).unwrap();
    assert!(waited.listens_again);
}

#[test]
fn responses_that_are_none_change_nothing_and_delay_the_next_call() {
    let mut side = Side::new(None);
    let mut now = 0;
    for (call, body) in [&b""[..], b"{}", b"noise", b"{\"epoch\": 1}"]
        .into_iter()
        .enumerate()
    {
        while side.host.calls().len() == call {
            side.listen(now);
            now += 100;
        }
        let call = u32::try_from(call).unwrap();
        let heard = side.answer(now, call, 200, body).unwrap();
        assert!(heard.updates.is_empty());
        assert!(side.answer(now, call, 200, body).is_none(), "once");
    }
    assert!(now > FIRST_PAUSE_MS * 6, "{now}");
    assert_eq!(side.host.log_text().matches("no pushes").count(), 1);
}
