//! Applies what others report: requests that other instances of [`Orderer`] (other workers) forwarded, events of an
//! engine's feed of cache events, and cached tokens in responses.

use super::Orderer;
use crate::conversation::memory::Path;
use crate::engines::EngineId;
use crate::feed::{Event, TenantKey};
use crate::head::config::HeadMode;
use crate::peer_update::{ChatContinuation, OrderingRecord, PeerUpdate};
use crate::tenant::Tenant;
use crate::tree::ResidencyEvent;

impl Orderer {
    /// Applies an update from another orderer (another worker or gateway) or from an engine's feed of cache events, as
    /// if this orderer had forwarded the request or read the feed.
    ///
    /// Messages of chats that are recorded already are not changed. Messages that continue one that is not recorded are
    /// ignored. A [`RemoteRecord`] only adds sequences of documents to knowledge trees.
    ///
    /// [`RemoteRecord`]: crate::RemoteRecord
    pub fn learn(&mut self, update: &PeerUpdate) {
        match update {
            PeerUpdate::OrderingRecord(record) => self.learn_record(record),
            PeerUpdate::Remote(record) => {
                self.now += 1;
                let about = &record.about;
                let tenant = about.tenant();
                let state = (self.tenants).heard(&self.config, self.now, tenant, &about.model);
                if let Some(state) = state {
                    state.learn(about.engine, &record.runs);
                }
            }
            PeerUpdate::Residency(residency) => {
                for event in &residency.events {
                    self.learn_event(residency.engine, &residency.model, event);
                }
            }
            PeerUpdate::Correction(correction) => {
                let about = &correction.about;
                let state = (self.tenants).any_mut(about.tenant(), &about.model);
                if let Some(state) = state {
                    for run in &correction.runs {
                        state.apply(about.engine, run.event());
                    }
                }
            }
        }
    }

    fn learn_record(&mut self, record: &OrderingRecord) {
        self.now += 1;
        if !record.forms.is_empty() && self.config.head.mode() == HeadMode::Apply {
            let heads = (self.heads).of(&self.config, self.now, record.tenant(), record.model());
            for form in &record.forms {
                heads.learn(form);
            }
        }
        let state = (self.tenants).of(&self.config, self.now, record.tenant(), record.model());
        state.learn(record.engine(), &record.runs);
        if let Some(message) = &record.context
            && self.config.pin.is_some()
        {
            state.record_contexts(&self.bare, message.clone());
        }
        // In reverse, so that the chat's first messages are evicted last.
        for claim in record.claims.iter().rev() {
            state.contexts.claim(claim.key, claim.next);
        }
        if let Some(ChatContinuation { after, added }) = &record.chat
            && let Some(path) = after.map_or(Some(Path::new()), |place| state.memory.path_to(place))
        {
            state.memory.record(&path, added.clone(), record.engine());
        }
    }

    /// Applies an event of an engine's feed of cache events to the knowledge trees (documents believed to be cached) of
    /// that engine.
    ///
    /// A feed identifies a tenant by its key and the model by the engine's name for it. Requests without a model name
    /// have a state with an empty model name, to which the events of all models are applied.
    ///
    /// If the engine reports a cleared cache without a model name, that is applied to the states of all models.
    ///
    /// Documents stored without a tenant's key may belong to any tenant, so states of named tenants without a key
    /// ignore them.
    fn learn_event(&mut self, engine: EngineId, model: &str, event: &Event) {
        let change = event.residency();
        let is_stored = matches!(change, ResidencyEvent::Stored { .. });
        let is_empty = matches!(change, ResidencyEvent::Cleared) && model.is_empty();
        if is_stored && event.tenant() == Some(TenantKey::default()) {
            (self.tenants).heard(&self.config, self.now, Tenant::default(), model);
        }
        for state in self.tenants.iter_mut() {
            let concerns = (*state.model == *model || state.model.is_empty() || is_empty)
                && event.tenant().is_none_or(|key| key == state.key);
            let is_known = state.tenant.is_empty() || state.key != TenantKey::default();
            if concerns && (is_known || !is_stored) {
                state.apply(engine, change);
            }
        }
    }
}
