//! A deed in bytes.
//!
//! ```text
//!   version  1
//!   deed     text tenant, key, text model, list of runs, option of chat
//!   run      scope, list of (fingerprint, number tokens), option of as many ranks
//!   chat     option of (chain, lineage), list of (number message, chain, list of arrangements, option of written)
//!   written  list's fingerprint, arrangement          arrangement   byte hinted, list of slots
//! ```
//!
//! Numbers, ranks, slots and lengths are LEB128, hashes and keys little-endian at their full width, an option a byte 0
//! or 1. Whoever reads does not trust: every length is held against what is left, so that nothing is reserved which is
//! not there, and what does not make sense is an error that says where.

use super::{Continued, Deed, SentRun};
use crate::arrangement::{Arrangement, Slot};
use crate::body::Chain;
use crate::conversation::memory::{Added, Place};
use crate::conversation::turn::{Turn, Written};
use crate::document::Fingerprint;
use crate::feed::TenantKey;
use crate::tree::Scope;

/// Why bytes are no deed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the deed is not one of version {VERSION}: {what} at byte {at}")]
pub struct BadDeed {
    /// What was expected.
    what: &'static str,
    /// Where.
    at: usize,
}

const VERSION: u8 = 1;

impl Deed {
    /// The deed in bytes. [`Deed::decode`] leads back to it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let documents: usize = self.runs.iter().map(|run| run.documents.len()).sum();
        let mut to = Writer(Vec::with_capacity(128 + 12 * documents));
        to.byte(VERSION);
        to.text(&self.tenant);
        to.bytes(&self.key.to_bytes());
        to.text(&self.model);
        to.list(&self.runs, |to, run| {
            to.bytes(&run.scope.0.to_le_bytes());
            to.list(&run.documents, |to, (document, tokens)| {
                to.bytes(&document.0.to_le_bytes());
                to.number(u64::from(*tokens));
            });
            to.option(run.order.as_ref(), |to, order| {
                for rank in order {
                    to.number(u64::from(*rank));
                }
            });
        });
        to.option(self.chat.as_ref(), |to, chat| {
            to.option(chat.after.as_ref(), |to, place| {
                to.bytes(&place.chain.0.to_le_bytes());
                to.bytes(&place.lineage.to_le_bytes());
            });
            to.list(&chat.added, |to, added| {
                to.number(u64::from(added.message));
                to.bytes(&added.chain.0.to_le_bytes());
                to.list(&added.turn.groups, Writer::arrangement);
                to.option(added.turn.written.as_ref(), |to, written| {
                    to.bytes(&written.list.0.to_le_bytes());
                    to.arrangement(&written.arrangement);
                });
            });
        });
        to.0
    }

    /// The deed in `bytes`, which it fills.
    ///
    /// # Errors
    /// [`BadDeed`]; nothing of the bytes can be relied on then.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadDeed> {
        let mut from = Reader { bytes, at: 0 };
        if from.byte()? != VERSION {
            return Err(BadDeed {
                what: "another version",
                at: 0,
            });
        }
        let deed = Self {
            tenant: from.text()?,
            key: TenantKey::from_bytes(from.array()?),
            model: from.text()?,
            runs: from.list(Reader::run)?,
            chat: from.option(Reader::chat)?,
        };
        if from.at == bytes.len() {
            Ok(deed)
        } else {
            Err(from.bad("more than a deed"))
        }
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.byte(number.to_le_bytes()[0] | 0x80);
            number >>= 7;
        }
        self.byte(number.to_le_bytes()[0]);
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.bytes(text.as_bytes());
    }

    fn list<T>(&mut self, list: &[T], each: impl Fn(&mut Self, &T)) {
        self.number(list.len() as u64);
        for item in list {
            each(self, item);
        }
    }

    fn option<T>(&mut self, option: Option<T>, some: impl FnOnce(&mut Self, T)) {
        self.byte(option.is_some().into());
        if let Some(value) = option {
            some(self, value);
        }
    }

    fn arrangement(&mut self, arrangement: &Arrangement) {
        self.byte(arrangement.hinted.into());
        self.list(&arrangement.slots, |to, slot| {
            let reference = u64::from(slot.is_reference());
            to.number(u64::from(slot.index()) << 1 | reference);
        });
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn run(&mut self) -> Result<SentRun, BadDeed> {
        let scope = Scope(self.hash()?);
        let documents =
            self.list(|from| Ok((Fingerprint(from.hash()?), from.narrow("tokens")?)))?;
        if documents.is_empty() {
            return Err(self.bad("a document"));
        }
        let order = self.option(|from| {
            let mut seen = vec![false; documents.len()];
            let rank = |_| {
                let rank = from.narrow::<u16>("a rank")?;
                let first = seen
                    .get_mut(usize::from(rank))
                    .map(|seen| !std::mem::replace(seen, true));
                (first == Some(true))
                    .then_some(rank)
                    .ok_or_else(|| from.bad("a rank of its own"))
            };
            (0..documents.len()).map(rank).collect()
        })?;
        Ok(SentRun {
            scope,
            documents,
            order,
        })
    }

    fn chat(&mut self) -> Result<Continued, BadDeed> {
        let after = self.option(|from| {
            Ok(Place {
                chain: from.chain()?,
                lineage: from.hash()?,
            })
        })?;
        let added = self.list(|from| {
            let message = from.narrow("a message")?;
            let chain = from.chain()?;
            let groups = from.list(Reader::arrangement)?.into();
            let written = from.option(|from| {
                Ok(Written {
                    list: Fingerprint(from.hash()?),
                    arrangement: from.arrangement()?,
                    pin: None,
                })
            })?;
            Ok(Added {
                message,
                chain,
                turn: Turn { groups, written },
            })
        })?;
        // Turns are chained in the order of their messages.
        if added.is_sorted_by(|one, next| one.message < next.message) {
            Ok(Continued { after, added })
        } else {
            Err(self.bad("messages in their order"))
        }
    }

    fn arrangement(&mut self) -> Result<Arrangement, BadDeed> {
        let hinted = self.flag()?;
        let slots = self.list(|from| {
            let slot = from.narrow::<u16>("a slot")?;
            let index = slot >> 1;
            Ok(if slot & 1 == 1 {
                Slot::reference(index)
            } else {
                Slot::document(index)
            })
        })?;
        Ok(Arrangement {
            slots: slots.into(),
            hinted,
        })
    }

    fn chain(&mut self) -> Result<Chain, BadDeed> {
        Ok(Chain(u128::from_le_bytes(self.array()?)))
    }

    fn hash(&mut self) -> Result<u64, BadDeed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn byte(&mut self) -> Result<u8, BadDeed> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BadDeed> {
        let array = self.bytes.get(self.at..).and_then(<[u8]>::first_chunk);
        let array = *array.ok_or_else(|| self.bad("more bytes"))?;
        self.at += N;
        Ok(array)
    }

    fn flag(&mut self) -> Result<bool, BadDeed> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.bad("0 or 1")),
        }
    }

    fn number(&mut self) -> Result<u64, BadDeed> {
        let mut number = 0_u64;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if part << shift >> shift != part {
                break;
            }
            number |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(self.bad("a number of 64 bits"))
    }

    fn narrow<T: TryFrom<u64>>(&mut self, what: &'static str) -> Result<T, BadDeed> {
        let number = self.number()?;
        T::try_from(number).map_err(|_| self.bad(what))
    }

    /// A length: never more than there are bytes left, for everything takes one at least.
    fn length(&mut self) -> Result<usize, BadDeed> {
        let length: usize = self.narrow("a length")?;
        if length <= self.bytes.len().saturating_sub(self.at) {
            Ok(length)
        } else {
            Err(self.bad("as many bytes as the length says"))
        }
    }

    fn text(&mut self) -> Result<Box<str>, BadDeed> {
        let length = self.length()?;
        let bytes = self
            .bytes
            .get(self.at..self.at + length)
            .unwrap_or_default();
        let text = str::from_utf8(bytes).map_err(|_| self.bad("UTF-8"))?;
        self.at += length;
        Ok(text.into())
    }

    fn list<T>(
        &mut self,
        mut each: impl FnMut(&mut Self) -> Result<T, BadDeed>,
    ) -> Result<Vec<T>, BadDeed> {
        (0..self.length()?).map(|_| each(self)).collect()
    }

    fn option<T>(
        &mut self,
        some: impl FnOnce(&mut Self) -> Result<T, BadDeed>,
    ) -> Result<Option<T>, BadDeed> {
        if self.flag()? {
            some(self).map(Some)
        } else {
            Ok(None)
        }
    }

    fn bad(&self, what: &'static str) -> BadDeed {
        BadDeed { what, at: self.at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn arrangement() -> impl Strategy<Value = Arrangement> {
        let slot = (0_u16..4096, any::<bool>()).prop_map(|(index, is_reference)| {
            if is_reference {
                Slot::reference(index)
            } else {
                Slot::document(index)
            }
        });
        (prop::collection::vec(slot, 0..5), any::<bool>()).prop_map(|(slots, hinted)| Arrangement {
            slots: slots.into(),
            hinted,
        })
    }

    fn run() -> impl Strategy<Value = SentRun> {
        let documents = prop::collection::vec((any::<u64>(), any::<u32>()), 1..20);
        (any::<u64>(), documents, any::<Option<u64>>()).prop_map(|(scope, documents, seed)| {
            SentRun {
                scope: Scope(scope),
                order: seed.map(|seed| {
                    let mut order: Vec<u16> = (0..documents.len() as u16).collect();
                    order.rotate_left(seed as usize % documents.len());
                    order
                }),
                documents: (documents.into_iter())
                    .map(|(document, tokens)| (Fingerprint(document), tokens))
                    .collect(),
            }
        })
    }

    fn chat() -> impl Strategy<Value = Continued> {
        let written = (any::<u64>(), arrangement()).prop_map(|(list, arrangement)| Written {
            list: Fingerprint(list),
            arrangement,
            pin: None,
        });
        let added = (
            any::<u128>(),
            prop::collection::vec(arrangement(), 0..3),
            prop::option::of(written),
        );
        let after = prop::option::of((any::<u128>(), any::<u64>()));
        (after, prop::collection::vec(added, 0..4)).prop_map(|(after, added)| Continued {
            after: after.map(|(chain, lineage)| Place {
                chain: Chain(chain),
                lineage,
            }),
            added: (0..)
                .step_by(300)
                .zip(added)
                .map(|(message, (chain, groups, written))| Added {
                    message,
                    chain: Chain(chain),
                    turn: Turn {
                        groups: groups.into(),
                        written,
                    },
                })
                .collect(),
        })
    }

    fn deed() -> impl Strategy<Value = Deed> {
        let names = ("[a-zé]{0,200}", "[a-z]{0,4}", "[a-z]{0,9}");
        (
            names,
            prop::collection::vec(run(), 0..4),
            prop::option::of(chat()),
        )
            .prop_map(|((tenant, salt, model), runs, chat)| Deed {
                tenant: tenant.into(),
                key: TenantKey::of(&salt),
                model: model.into(),
                runs,
                chat,
            })
    }

    #[test]
    fn the_bytes_are_fixed() {
        // Modules of different builds meet in one ring while a gateway is updated.
        let deed = Deed {
            tenant: "t".into(),
            key: TenantKey::default(),
            model: "m".into(),
            runs: vec![SentRun {
                scope: Scope(0x0102),
                documents: vec![(Fingerprint(3), 300), (Fingerprint(4), 5)],
                order: Some(vec![1, 0]),
            }],
            chat: None,
        };
        let mut bytes = vec![1, 1, b't'];
        bytes.extend([0; 16]);
        bytes.extend([1, b'm', 1]);
        bytes.extend([2, 1, 0, 0, 0, 0, 0, 0, 2]);
        bytes.extend([3, 0, 0, 0, 0, 0, 0, 0, 0xac, 2]);
        bytes.extend([4, 0, 0, 0, 0, 0, 0, 0, 5]);
        bytes.extend([1, 1, 0, 0]);
        assert_eq!(deed.encode(), bytes);
    }

    #[test]
    fn what_is_no_deed_says_what_was_expected_and_where() {
        let huge = [&[1, 0][..], &[0; 16], &[0], &[0xff; 9], &[1]].concat();
        let twice = [
            &[1, 0][..],
            &[0; 16],
            &[0, 1],
            &[0; 8],
            &[2],
            &[0; 18],
            &[1, 0, 0, 0],
        ]
        .concat();
        for (bytes, error) in [
            (&[][..], "more bytes at byte 0"),
            (&[2], "another version at byte 0"),
            (&[1, 2, 0xff, 0xff], "UTF-8 at byte 2"),
            (&[1, 3, b'a'], "as many bytes as the length says at byte 2"),
            (&huge, "as many bytes as the length says at byte 29"),
            (&twice, "a rank of its own at byte 50"),
        ] {
            let found = Deed::decode(bytes).unwrap_err().to_string();
            assert!(found.ends_with(error), "{found}, not {error}");
        }
    }

    proptest! {
        #[test]
        fn bytes_lead_back_to_their_deed(deed in deed()) {
            prop_assert_eq!(Deed::decode(&deed.encode()), Ok(deed));
        }

        #[test]
        fn no_bytes_panic_and_a_cut_deed_is_none(deed in deed(), at in any::<usize>(), byte in any::<u8>()) {
            let mut bytes = deed.encode();
            let at = at % bytes.len();
            prop_assert!(Deed::decode(&bytes[..at]).is_err());
            bytes[at] = byte;
            let _ = Deed::decode(&bytes);
        }

        #[test]
        fn noise_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Deed::decode(&bytes);
            let _ = Deed::decode(&[&[VERSION], &bytes[..]].concat());
        }
    }
}
