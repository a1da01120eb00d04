//! Gives the tools of a request an order and a form (order of JSON keys) that do not depend on the client.
//!
//! ```text
//!   request 1   search {"name", "parameters"}   weather {…}      first seen: recorded as the form
//!   request 2   weather {…}   search {"parameters", "name"}      equal except for the order of keys
//!   forwarded   search {"name", "parameters"}   weather {…}      by name, in the first form
//! ```
//!
//! If requests have different tools, [`super::toolsets`] decides the order.
//!
//! A **layout** is a parsed tool: its objects and set-like arrays, their members as ranges, and the order of the
//! members. Tools of equal content have equal layouts once members are sorted by key. So a **form** is only the order
//! of each list's members, and applying it moves ranges of the client's own bytes: nothing is printed, and no hash
//! collision can put another tool's text into a request.
//!
//! Reordered are the keys of objects, the array `required`, and the members of `dependentRequired`. Not reordered is
//! any other array (`enum`, `oneOf`, `anyOf`, `allOf`, `prefixItems`), nor `const`, `default` and examples, which are
//! values that the model may copy. A tool with a duplicate key, or an escape in a key, is not changed. If a tool has
//! `cache_control`, or a `cachePoint` is among them, no tool is changed: the client defined where its prefix ends.

use super::config::RawHeadTools;
use super::decision::Form;
use super::toolsets::{self, SetTool, ToolSets};
use crate::body::scan::{Scan, fields};
use crate::lru::Lru;
use crate::sort::sort_by_key;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The forms (orders of JSON keys) in which the tools of one tenant and model are forwarded, and the orders of their
/// sets of tools.
#[derive(Debug, Default)]
pub(crate) struct Tools {
    /// The form (order of members) in which each tool is forwarded, by a hash of the tool that ignores this order; and
    /// the order of each set of tools, by the set's key.
    forms: Forms,
    /// Tools that were parsed before, by the hash of their JSON.
    known: Lru<u64, Known>,
    /// The sets of tools that requests have offered, with their orders.
    sets: ToolSets,
    /// Forms (orders of a tool's members or of a set of tools) that this worker chose itself and has not yet sent to
    /// other workers.
    queued_forms: Vec<Form>,
    /// A counter that increases whenever an order of a tool's members (JSON keys) or of a set of tools is recorded.
    pub(crate) version: u64,
}

/// Forms (orders of a tool's members or of a set of tools), by a hash of the tool or the set. Most take a few dozen
/// bytes, and products with many tool lists have thousands of them, so large forms are in a separate list with its own
/// bound. The forms in each list take at most half a megabyte.
#[derive(Debug, Default)]
struct Forms {
    small: Lru<u64, Box<[u8]>>,
    large: Lru<u64, Box<[u8]>>,
}

impl Forms {
    fn get(&mut self, hash: u64) -> Option<&[u8]> {
        let form = match self.small.get(&hash) {
            Some(form) => Some(form),
            None => self.large.get(&hash),
        };
        form.map(|form| &**form)
    }

    fn insert(&mut self, hash: u64, form: Box<[u8]>) {
        if form.len() <= MAX_SMALL_FORM_BYTES {
            self.small.insert(hash, form, MAX_SMALL_FORMS);
        } else {
            self.large.insert(hash, form, MAX_LARGE_FORMS);
        }
    }
}

/// The record of a tool that was parsed before.
#[derive(Debug)]
struct Known {
    /// Range in the tool's JSON of its name, without quotes; empty if it has none.
    name: Range<usize>,
    /// Hash of the tool that does not depend on the order of its JSON keys and of the elements of set-like arrays such
    /// as `required`; `None` if the tool must not be changed.
    canonical: Option<u64>,
    /// Hash of the order in which this JSON of the tool has its keys and the elements of set-like arrays; 0 if the tool
    /// must not be changed.
    order: u64,
    /// True if the tool has a cache marker (`cache_control` or `cachePoint`): then no tool of its request is changed.
    marked: bool,
}

/// The tools of a request as they are forwarded, if they differ from the client's.
#[derive(Debug, Default)]
pub(crate) struct Arranged<'a> {
    /// The tools in the order in which they are sent, each with its index in the client's list and its JSON.
    pub(crate) tools: Vec<(usize, Cow<'a, str>)>,
    /// Number of tools whose position in the list changed.
    pub(crate) moved: u32,
    /// Number of tools whose JSON keys changed order.
    pub(crate) reformed: u32,
}

impl Tools {
    /// Returns the tools to forward, in the order and form that requests with the same tools have in common; `None` if
    /// the client's are to be forwarded unchanged, as always with more than [`MAX_TOOLS`]. Records tools and sets that
    /// are new. O(bytes of the tools not seen before) + O(tools log tools).
    pub(crate) fn arrange<'a>(
        &mut self,
        tools: &[&'a str],
        wanted: RawHeadTools,
    ) -> Option<Arranged<'a>> {
        if tools.is_empty() || tools.len() > MAX_TOOLS || !(wanted.order || wanted.schemas) {
            return None;
        }
        let mut names: Vec<(&str, usize)> = Vec::with_capacity(tools.len());
        let mut arranged = Arranged::default();
        let mut texts: Vec<Cow<'a, str>> = Vec::with_capacity(tools.len());
        let mut ids: Vec<SetTool> = Vec::with_capacity(tools.len());
        for (at, tool) in tools.iter().enumerate() {
            let raw = xxh3_64_with_seed(tool.as_bytes(), 0);
            let mut layout = None;
            if self.known.get(&raw).is_none() {
                layout = Layout::of(tool);
                let known = self.read(tool, layout.as_ref());
                self.known.insert(raw, known, MAX_KNOWN);
            }
            let known = self.known.get(&raw)?;
            if known.marked {
                return None;
            }
            names.push((tool.get(known.name.clone()).unwrap_or_default(), at));
            let (canonical, order) = (known.canonical, known.order);
            let form = canonical.filter(|_| wanted.schemas);
            let form = form.and_then(|canonical| self.forms.get(canonical));
            let other = form.filter(|form| xxh3_64_with_seed(form, 0) != order);
            let text = other.and_then(|form| {
                let layout = layout.or_else(|| Layout::of(tool))?;
                layout.reformed(tool, form)
            });
            arranged.reformed += u32::from(text.is_some());
            ids.push(SetTool {
                id: canonical.filter(|_| wanted.schemas).unwrap_or(raw),
                bytes: tool.len(),
            });
            texts.push(text.map_or(Cow::Borrowed(*tool), Cow::Owned));
        }
        if wanted.order {
            sort_by_key(&mut names, |(name, _)| *name);
            let is_certain = names.iter().all(|(name, _)| !name.is_empty())
                && names.windows(2).all(|pair| match pair {
                    [(one, _), (next, _)] => one != next,
                    _ => true,
                });
            if is_certain {
                names = self.in_set_order(names, &ids);
            } else {
                // With duplicate or missing names, the order may have a meaning.
                sort_by_key(&mut names, |(_, at)| *at);
            }
        }
        let moved = names.iter().enumerate();
        let moved = moved.filter(|(place, (_, at))| place != at).count();
        arranged.moved = u32::try_from(moved).unwrap_or(u32::MAX);
        if arranged.moved == 0 && arranged.reformed == 0 {
            return None;
        }
        let order = names.into_iter();
        arranged.tools = order
            .filter_map(|(_, at)| Some((at, texts.get_mut(at).map(std::mem::take)?)))
            .collect();
        Some(arranged)
    }

    /// Returns `names` in the order recorded for this set of tools; for a new set, an order is chosen and recorded.
    /// `names` are sorted by name, each with the index of its tool in `ids`; if there are more than [`MAX_SET_TOOLS`],
    /// they stay sorted by name.
    fn in_set_order<'a>(
        &mut self,
        names: Vec<(&'a str, usize)>,
        ids: &[SetTool],
    ) -> Vec<(&'a str, usize)> {
        if names.len() > MAX_SET_TOOLS {
            return names;
        }
        let by_name = names.iter().filter_map(|(_, at)| ids.get(*at).copied());
        let by_name: SmallVec<[SetTool; 32]> = by_name.collect();
        let key = toolsets::key_of(&by_name);
        let told = self.forms.get(key);
        let is_told = told.is_some();
        let order = self.sets.order(key, &by_name, told);
        if !is_told {
            self.queue_form(Form {
                canonical: key,
                order: order.as_slice().into(),
            });
        }
        let order = order.iter();
        order
            .filter_map(|rank| names.get(usize::from(*rank)).copied())
            .collect()
    }

    /// Records a form (order of a tool's members or of a set of tools) that this worker has chosen, and queues it for
    /// other workers.
    fn queue_form(&mut self, form: Form) {
        self.version += 1;
        self.forms.insert(form.canonical, form.order.clone());
        self.queued_forms.truncate(MAX_QUEUED_FORMS);
        self.queued_forms.push(form);
    }

    /// Removes and returns the forms (orders of a tool's members or of a set of tools) that this worker has chosen
    /// since the last call, to be sent to other workers; at most 64.
    pub(crate) fn take_unpublished(&mut self) -> Vec<Form> {
        std::mem::take(&mut self.queued_forms)
    }

    /// Records a form (order of a tool's members or of a set of tools) that another worker chose. Of two forms of one
    /// tool or set, every worker keeps the smaller one by byte order, so all agree, whichever they saw first.
    pub(crate) fn learn(&mut self, form: &Form) {
        if form.order.len() > MAX_FORM_BYTES {
            return;
        }
        let is_new = (self.forms.get(form.canonical)).is_none_or(|known| *form.order < *known);
        if is_new {
            self.version += 1;
            self.forms.insert(form.canonical, form.order.clone());
        }
    }

    /// Returns what to record of a tool; `layout` is `None` if the tool must not be changed. Tools with one canonical
    /// hash (independent of the order of keys and sets) all get the form (that order) of the first such tool seen.
    fn read(&mut self, tool: &str, layout: Option<&Layout>) -> Known {
        let marked = ["\"cache_control\"", "\"cachePoint\""];
        let marked = marked.into_iter().any(|mark| tool.contains(mark));
        let name = name_of(tool).map(|name| crate::body::range_in(tool, name));
        let name = name.unwrap_or_default();
        let Some(layout) = layout else {
            return Known {
                name,
                canonical: None,
                order: 0,
                marked,
            };
        };
        let order = layout.order().unwrap_or_default();
        let hash = xxh3_64_with_seed(&order, 0);
        let canonical = layout.canonical;
        if order.len() <= MAX_FORM_BYTES && self.forms.get(canonical).is_none() {
            self.queue_form(Form {
                canonical,
                order: order.into(),
            });
        }
        Known {
            name,
            canonical: Some(canonical),
            order: hash,
            marked,
        }
    }
}

/// Returns a tool's name, without quotes: `function.name` (OpenAI), `toolSpec.name` (Bedrock), `name` (Responses,
/// Anthropic, Cohere, Gemini's functions), else its `type`, which names a provider's own tools. `None` if it has none
/// of these, or is not a JSON object.
pub(crate) fn name_of(tool: &str) -> Option<&str> {
    let names = ["function", "toolSpec", "name", "type"];
    let [function, spec, name, kind] = fields(tool, names).ok()?;
    let inner = function.or(spec).and_then(|function| {
        let [name] = fields(function, ["name"]).ok()?;
        name
    });
    let name = inner.or(name).or(kind)?;
    name.strip_prefix('"')?.strip_suffix('"')
}

/// The JSON of a tool, parsed as nested lists of members (fields of objects, elements of sets).
struct Layout {
    canonical: u64,
    /// One list: the fields of the tool's object. Lists inside it are in [`Member::lists`].
    lists: Vec<List>,
    /// Number of lists in the JSON, nested ones included.
    count: usize,
}

/// A JSON object, or an array whose order has no meaning, as a list of members.
struct List {
    /// The number of the list in its [`Layout`], from 0 up to [`Layout::count`].
    number: usize,
    /// The members (fields with their names, or elements) in the order of the JSON.
    members: Vec<Member>,
    /// Indices into `members`, sorted by the members' keys.
    sorted: SmallVec<[u8; 8]>,
}

struct Member {
    range: Range<usize>,
    /// The outermost objects and set-like arrays in the value of this member.
    lists: Vec<List>,
}

impl Layout {
    fn of(tool: &str) -> Option<Self> {
        let mut reading = Reading {
            text: tool,
            scan: Scan::new(tool),
            lists: Vec::new(),
            count: 0,
        };
        if !tool.starts_with('{') {
            return None;
        }
        let canonical = reading.value(Context::Schema, 0)?;
        reading.scan.end().ok()?;
        Some(Self {
            canonical,
            lists: reading.lists,
            count: reading.count,
        })
    }

    /// Returns a tool's JSON with the members of each list in the order of `form`; `None` if the form does not fit this
    /// tool.
    fn reformed(&self, tool: &str, form: &[u8]) -> Option<String> {
        let mut orders: Vec<&[u8]> = vec![&[]; self.count];
        let mut rest = form;
        visit(&self.lists, &mut |list| {
            let count = list.sorted.len();
            let (order, behind) = rest.split_at_checked(count)?;
            *orders.get_mut(list.number)? = order;
            rest = behind;
            toolsets::is_permutation(order, count).then_some(())
        })?;
        if !rest.is_empty() {
            return None;
        }
        let mut out = String::with_capacity(tool.len());
        write(tool, 0..tool.len(), &self.lists, &orders, &mut out)?;
        (out.len() == tool.len()).then_some(out)
    }

    /// Returns the form (order of members) of this JSON: for each list of two or more members, in the order in which
    /// [`visit`] passes the lists, the rank of each member when sorted by key. `None` if a rank does not fit into a
    /// byte.
    fn order(&self) -> Option<Vec<u8>> {
        let mut order = Vec::new();
        visit(&self.lists, &mut |list| {
            let start = order.len();
            order.resize(start + list.sorted.len(), 0);
            for (rank, place) in (0_u8..=u8::MAX).zip(&list.sorted) {
                *order.get_mut(start + usize::from(*place))? = rank;
            }
            Some(())
        })?;
        Some(order)
    }
}

/// Calls `each` for the lists (objects and set-like arrays) of two or more members, in an order that does not depend on
/// the client: each list before those in its members, and these in the order of the members' keys. Stops and returns
/// `None` when `each` does.
fn visit<'l>(lists: &'l [List], each: &mut dyn FnMut(&'l List) -> Option<()>) -> Option<()> {
    for list in lists {
        if list.sorted.len() > 1 {
            each(list)?;
        }
        for place in &list.sorted {
            visit(&list.members.get(usize::from(*place))?.lists, each)?;
        }
    }
    Some(())
}

/// Appends the JSON in `range` of a tool to `out`, with the members of each of `lists` in the order that `orders` has
/// for that list, by the list's number. `None` if an order does not fit.
fn write(
    tool: &str,
    range: Range<usize>,
    lists: &[List],
    orders: &[&[u8]],
    out: &mut String,
) -> Option<()> {
    let mut done = range.start;
    for list in lists {
        let order = orders.get(list.number)?;
        for (place, slot) in list.members.iter().enumerate() {
            out.push_str(tool.get(done..slot.range.start)?);
            let from = match order.get(place) {
                Some(rank) => usize::from(*list.sorted.get(usize::from(*rank))?),
                None => place,
            };
            let member = list.members.get(from)?;
            write(tool, member.range.clone(), &member.lists, orders, out)?;
            done = slot.range.end;
        }
    }
    out.push_str(tool.get(done..range.end)?);
    Some(())
}

/// The meaning of the keys of a JSON object in a tool: it decides how the values are parsed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Context {
    /// The keys are keywords of JSON schema or of a tool's definition.
    Schema,
    /// The keys are names whose values are schemas, such as the keys of `properties`.
    Names,
    /// The keys are names whose values are arrays without a meaningful order.
    Sets,
}

/// The way in which the value of a key in a tool's JSON is parsed.
enum Reads {
    As(Context),
    /// The value is parsed as an array whose order has no meaning if it is an array of distinct strings, and otherwise
    /// like the value of a keyword of JSON schema.
    Set,
    /// The value is parsed as opaque bytes: nothing in it is reordered.
    Raw,
}

impl Context {
    fn reads(self, key: &str) -> Reads {
        match self {
            Self::Names => Reads::As(Self::Schema),
            Self::Sets => Reads::Set,
            Self::Schema => match key {
                "properties"
                | "patternProperties"
                | "$defs"
                | "definitions"
                | "dependentSchemas"
                | "parameter_definitions" => Reads::As(Self::Names),
                "required" => Reads::Set,
                "dependentRequired" => Reads::As(Self::Sets),
                "enum" | "const" | "default" | "example" | "examples" | "input_examples" => {
                    Reads::Raw
                }
                _ => Reads::As(Self::Schema),
            },
        }
    }
}

struct Reading<'a> {
    text: &'a str,
    scan: Scan<'a>,
    /// The complete lists (objects and set-like arrays) read so far in the current value.
    lists: Vec<List>,
    /// Number of lists (objects and set-like arrays) read so far, nested ones included.
    count: usize,
}

impl Reading<'_> {
    /// Parses the next value and returns its canonical hash (independent of the order of members); `None` if the tool
    /// must not be changed.
    fn value(&mut self, context: Context, depth: usize) -> Option<u64> {
        if depth > MAX_DEPTH {
            return None;
        }
        let start = self.scan.next();
        match self.text.as_bytes().get(start)? {
            b'{' => self.object(context, depth),
            b'[' => self.array(context, depth),
            _ => self.raw(),
        }
    }

    fn raw(&mut self) -> Option<u64> {
        let raw = self.scan.value().ok()?;
        Some(xxh3_64_with_seed(raw.as_bytes(), 1))
    }

    fn object(&mut self, context: Context, depth: usize) -> Option<u64> {
        self.scan.expect(b'{').ok()?;
        let mut members: Vec<Member> = Vec::new();
        let mut keys: SmallVec<[(&str, u64); 8]> = SmallVec::new();
        if !self.scan.eat(b'}') {
            loop {
                let start = self.scan.next();
                let key = self.scan.name().ok()?;
                if key.contains('\\') {
                    return None;
                }
                let before = std::mem::take(&mut self.lists);
                let hash = match context.reads(key) {
                    Reads::As(context) => self.value(context, depth + 1)?,
                    Reads::Set => self.set(depth + 1)?,
                    Reads::Raw => self.raw()?,
                };
                members.push(Member {
                    range: start..self.scan.at(),
                    lists: std::mem::replace(&mut self.lists, before),
                });
                keys.push((key, hash));
                if keys.len() > MAX_MEMBERS {
                    return None;
                }
                if !self.scan.read_separator(b'}').ok()? {
                    break;
                }
            }
        }
        self.close(2, members, &keys)
    }

    /// Parses an array whose elements keep their order and returns its canonical hash (independent of the order of keys
    /// inside); `None` if the tool must not be changed.
    fn array(&mut self, context: Context, depth: usize) -> Option<u64> {
        self.scan.expect(b'[').ok()?;
        let mut hash = 3;
        if !self.scan.eat(b']') {
            loop {
                let element = self.value(context, depth + 1)?;
                hash = xxh3_64_with_seed(&element.to_le_bytes(), hash);
                if !self.scan.read_separator(b']').ok()? {
                    break;
                }
            }
        }
        Some(hash)
    }

    /// Parses a value. If it is an array of distinct strings, its order has no meaning, so the hash does not depend on
    /// it; any other value is parsed as usual. Returns the canonical hash (independent of the order of members); `None`
    /// if the tool must not be changed.
    fn set(&mut self, depth: usize) -> Option<u64> {
        let start = self.scan.next();
        let mut ahead = Scan::new(self.text.get(start..)?);
        let is_array = self.text.as_bytes().get(start) == Some(&b'[');
        let elements = if is_array {
            // Elements are few and short, so scanning them twice costs little.
            ahead.elements().unwrap_or_default()
        } else {
            Vec::new()
        };
        if elements.len() > MAX_MEMBERS {
            return None;
        }
        let mut sorted = elements.clone();
        sort_by_key(&mut sorted, |element| *element);
        let are_names = elements.iter().all(|element| element.starts_with('"'));
        let is_set = are_names
            && !elements.is_empty()
            && sorted.windows(2).all(|pair| pair.first() != pair.last());
        if !is_set {
            return self.value(Context::Schema, depth);
        }
        self.scan.value().ok()?;
        let members = elements.iter().map(|element| {
            let start = crate::body::offset_in(self.text, element);
            Member {
                range: start..start + element.len(),
                lists: Vec::new(),
            }
        });
        let members = members.collect();
        let keys: SmallVec<[(&str, u64); 8]> = elements.iter().map(|name| (*name, 0)).collect();
        self.close(4, members, &keys)
    }

    /// Adds a list (object or set-like array), given its members and, for each, the key and the hash of the value.
    /// Returns the list's canonical hash (independent of the members' order); `None` if two keys are equal or the list
    /// has too many members.
    fn close(&mut self, kind: u64, members: Vec<Member>, keys: &[(&str, u64)]) -> Option<u64> {
        // A rank must fit into a byte.
        let count = u8::try_from(keys.len()).ok()?;
        let mut sorted: SmallVec<[u8; 8]> = (0..count).collect();
        let key = |place: &u8| keys.get(usize::from(*place)).map(|(key, _)| *key);
        sort_by_key(&mut sorted, |place| key(place));
        if sorted
            .windows(2)
            .any(|pair| pair.first().and_then(key) == pair.last().and_then(key))
        {
            return None;
        }
        let hash = sorted.iter().fold(kind, |hash, place| {
            let (key, value) = keys.get(usize::from(*place)).copied().unwrap_or_default();
            let hash = xxh3_64_with_seed(key.as_bytes(), hash);
            xxh3_64_with_seed(&value.to_le_bytes(), hash)
        });
        self.lists.push(List {
            number: self.count,
            members,
            sorted,
        });
        self.count += 1;
        Some(hash)
    }
}

/// The maximum depth of nesting that is parsed in a tool's JSON; a deeper tool is not changed.
const MAX_DEPTH: usize = 48;

/// The maximum number of small forms (orders of a tool's members) for one tenant and model; the least recently used are
/// evicted.
const MAX_SMALL_FORMS: usize = 4_096;

/// The maximum length in bytes of a form (order of a tool's members) that counts as small.
const MAX_SMALL_FORM_BYTES: usize = 128;

/// The maximum number of larger forms (orders of a tool's members) for one tenant and model; the least recently used
/// are evicted.
const MAX_LARGE_FORMS: usize = 256;

/// The maximum length in bytes of a form (order of members) that is recorded: one byte for each member of a list of two
/// or more members.
const MAX_FORM_BYTES: usize = 2_048;

/// The maximum number of tools of a request; if there are more, they are forwarded unchanged.
pub(super) const MAX_TOOLS: usize = 1_024;

/// The maximum number of members of an object or set-like array in a tool, since a rank takes one byte; a tool with a
/// larger one keeps its JSON.
const MAX_MEMBERS: usize = 255;

/// The maximum number of tools of a set whose order is recorded, since a rank takes one byte. Larger sets are sorted by
/// name.
const MAX_SET_TOOLS: usize = 255;

/// The maximum number of parsed tools recorded for one tenant and model.
const MAX_KNOWN: usize = 2_048;

/// The maximum number of forms (orders of a tool's members) that wait to be sent to other workers, not counting the
/// newest one.
const MAX_QUEUED_FORMS: usize = 63;
