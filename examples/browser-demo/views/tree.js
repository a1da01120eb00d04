// The knowledge tree, drawn outwards from the heads of prompts: an angle for each leaf, a ring for each place in a prompt,
// and a dot as large as what is shared there. The view box is the camera: moving and zooming change nothing else but the
// labels, which keep their size and out of each other's way.

import { byId, counted, shape } from "../dom.js";

/** Radius of the first ring, and between two of the others. */
const [FIRST, RING] = [110, 58];
/** Pixels of a label's letters, and labels at once. */
const [LETTER, LABELS] = [12.5, 18];

export class TreeView {
  #svg = byId("tree");
  #labels = shape("g");
  #spots = [];
  #extent = extentOf(4);
  #camera = { ...this.#extent };
  #known = new Set();
  #pointers = new Map();

  constructor() {
    byId("zoom-in").addEventListener("click", () => this.#zoom(0.7));
    byId("zoom-out").addEventListener("click", () => this.#zoom(1 / 0.7));
    byId("zoom-fit").addEventListener("click", () => this.#fit());
    this.#svg.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    this.#svg.addEventListener("keydown", (event) => this.#key(event));
    this.#svg.addEventListener("pointerdown", (event) => this.#pointerDown(event));
    this.#svg.addEventListener("pointermove", (event) => this.#pointerMove(event));
    for (const name of ["pointerup", "pointercancel"]) {
      this.#svg.addEventListener(name, ({ pointerId }) => this.#pointers.delete(pointerId));
    }
    new ResizeObserver(() => this.#label()).observe(this.#svg);
  }

  /** Draws `nodes`, parents before children; `path` is the last prompt's documents. */
  show(nodes, path) {
    this.#spots = place(nodes);
    const lit = litPath(nodes, path);
    const links = [];
    const dots = [];
    this.#spots.forEach((spot, at) => {
      const { parent, title, tokens } = nodes[at];
      spot.title = title;
      spot.on = lit.includes(at);
      const isNew = this.#known.size > 0 && !this.#known.has(spot.key);
      const kind = `${spot.on ? " on" : ""}${isNew ? " new" : ""}${spot.leaves > 1 ? " shared" : ""}`;
      if (parent !== null) links.push(shape("path", { d: curve(this.#spots[parent], spot), class: `link${kind}` }));
      const dot = shape("circle", { cx: spot.x, cy: spot.y, r: size(spot), class: `node${kind}` });
      dot.append(shape("title", {}, parent === null ? title : `${title}: ${tokens} tokens, in ${counted(spot.leaves, "path")}`));
      dots.push(dot);
    });
    links.sort((a, b) => a.classList.contains("on") - b.classList.contains("on"));
    this.#svg.replaceChildren(...links, ...dots, this.#labels);
    this.#known = new Set(this.#spots.map(({ key }) => key));
    this.#grow();
    const titles = lit.map((at) => nodes[at].title);
    const told = `The knowledge tree: ${counted(nodes.length, "node")}. This prompt: ${titles.join(", then ")}.`;
    this.#svg.setAttribute("aria-label", told);
  }

  clear() {
    this.#known = new Set();
    this.#spots = [];
    this.#svg.replaceChildren(this.#labels);
    this.#extent = extentOf(4);
    this.#fit();
  }

  /** Where the camera looks. */
  get camera() {
    return { ...this.#camera };
  }

  /** The whole tree stays in view unless the user looks elsewhere. */
  #grow() {
    const wasWhole = this.#camera.width === this.#extent.width && this.#camera.x === this.#extent.x;
    this.#extent = extentOf(Math.max(4, ...this.#spots.map(({ depth }) => depth)));
    if (wasWhole) this.#fit();
    else this.#label();
  }

  #fit() {
    this.#look({ ...this.#extent });
  }

  #zoom(factor, [x, y] = this.#centre()) {
    const { width, height } = this.#camera;
    const scale = (clamp((width * factor) / this.#extent.width, 0.04, 1.5) * this.#extent.width) / width;
    this.#look({
      x: x - (x - this.#camera.x) * scale,
      y: y - (y - this.#camera.y) * scale,
      width: width * scale,
      height: height * scale,
    });
  }

  #move(dx, dy) {
    this.#look({ ...this.#camera, x: this.#camera.x + dx, y: this.#camera.y + dy });
  }

  #look(camera) {
    this.#camera = camera;
    const { x, y, width, height } = camera;
    this.#svg.setAttribute("viewBox", [x, y, width, height].map((n) => n.toFixed(2)).join(" "));
    this.#label();
  }

  /** Names this prompt's documents, and as many of the most shared ones in view as find room. */
  #label() {
    const { clientWidth, clientHeight } = this.#svg;
    const pixel = Math.max(this.#camera.width / Math.max(1, clientWidth), this.#camera.height / Math.max(1, clientHeight));
    const letter = LETTER * pixel;
    this.#svg.style.fontSize = `${letter.toFixed(2)}px`;
    const [x, y] = this.#centre();
    const view = { left: x - (clientWidth * pixel) / 2, right: x + (clientWidth * pixel) / 2 };
    const halfHeight = (clientHeight * pixel) / 2;
    const inView = (spot) => spot.x > view.left && spot.x < view.right && Math.abs(spot.y - y) < halfHeight;
    const worth = this.#spots.filter((spot) => spot.depth > 0 && (spot.on || spot.leaves > 2) && inView(spot));
    worth.sort((a, b) => b.on - a.on || b.leaves - a.leaves);
    const taken = [];
    const labels = [];
    for (const spot of worth) {
      if (labels.length === LABELS) break;
      const box = boxOf(spot, letter, view);
      if (taken.some((other) => overlap(box, other))) continue;
      taken.push(box);
      labels.push(shape("text", { x: box.anchor, y: spot.y + letter * 0.35, "text-anchor": box.side, class: spot.on ? "on" : "" }, box.words));
    }
    this.#labels.replaceChildren(...labels);
  }

  #centre() {
    const { x, y, width, height } = this.#camera;
    return [x + width / 2, y + height / 2];
  }

  /** Where a pointer is, as the drawing counts. */
  #at({ clientX, clientY }) {
    const matrix = this.#svg.getScreenCTM();
    if (!matrix) return this.#centre();
    const { x, y } = new DOMPoint(clientX, clientY).matrixTransform(matrix.inverse());
    return [x, y];
  }

  #wheel(event) {
    event.preventDefault();
    this.#zoom(Math.exp(clamp(event.deltaY, -100, 100) * 0.003), this.#at(event));
  }

  #key(event) {
    const step = this.#camera.width / 10;
    const does = {
      "+": () => this.#zoom(0.7),
      "=": () => this.#zoom(0.7),
      "-": () => this.#zoom(1 / 0.7),
      0: () => this.#fit(),
      ArrowLeft: () => this.#move(-step, 0),
      ArrowRight: () => this.#move(step, 0),
      ArrowUp: () => this.#move(0, -step),
      ArrowDown: () => this.#move(0, step),
    }[event.key];
    if (!does || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    does();
  }

  #pointerDown(event) {
    this.#svg.setPointerCapture(event.pointerId);
    this.#pointers.set(event.pointerId, event);
  }

  /** One pointer moves, two pinch. */
  #pointerMove(event) {
    const before = this.#pointers.get(event.pointerId);
    if (!before) return;
    const others = [...this.#pointers.values()].filter(({ pointerId }) => pointerId !== event.pointerId);
    if (others.length === 0) {
      const [fromX, fromY] = this.#at(before);
      const [toX, toY] = this.#at(event);
      this.#move(fromX - toX, fromY - toY);
    } else {
      const [other] = others;
      this.#zoom(distance(before, other) / Math.max(1, distance(event, other)), this.#at(other));
    }
    this.#pointers.set(event.pointerId, event);
  }
}

/** A place for every node: rings by depth, and of a ring as much as a node has leaves. */
function place(nodes) {
  const children = nodes.map(() => []);
  nodes.forEach(({ parent }, at) => {
    if (parent !== null) children[parent].push(at);
  });
  const leaves = new Array(nodes.length).fill(1);
  for (let at = nodes.length - 1; at >= 0; at -= 1) {
    if (children[at].length > 0) leaves[at] = children[at].reduce((sum, child) => sum + leaves[child], 0);
  }
  // Neighbours stay neighbours as the tree grows.
  for (const list of children) list.sort((a, b) => (nodes[a].fingerprint < nodes[b].fingerprint ? -1 : 1));
  const placed = new Array(nodes.length);
  const roots = nodes.flatMap(({ parent }, at) => (parent === null ? [at] : []));
  const all = roots.reduce((sum, root) => sum + leaves[root], 0);
  let from = -Math.PI / 2;
  for (const root of roots) {
    const angle = (2 * Math.PI * leaves[root]) / all;
    spread(root, from, angle, 0, "");
    from += angle;
  }
  return placed;

  function spread(at, start, angle, depth, above) {
    const key = `${above}/${nodes[at].fingerprint ?? ""}`;
    const middle = start + angle / 2;
    const radius = radiusOf(depth);
    const [x, y] = [radius * Math.cos(middle), radius * Math.sin(middle)];
    placed[at] = { x, y, angle: middle, radius, depth, key, leaves: leaves[at] };
    let next = start;
    for (const child of children[at]) {
      const part = (angle * leaves[child]) / leaves[at];
      spread(child, next, part, depth + 1, key);
      next += part;
    }
  }
}

function radiusOf(depth) {
  return depth === 0 ? 0 : FIRST + (depth - 1) * RING;
}

/** The drawing's edges, with room for labels at its sides. */
function extentOf(depth) {
  const radius = radiusOf(depth) + 12;
  const width = 2 * radius + 120;
  return { x: -width / 2, y: -radius, width, height: 2 * radius };
}

/** By how many paths go through it. */
function size({ leaves, depth, on }) {
  const shared = depth === 0 ? 9 : Math.min(15, 1.6 + 2.1 * Math.sqrt(leaves - 1));
  return on ? Math.max(5, shared) : shared;
}

/** The nodes that `path` leads through, in its order. */
function litPath(nodes, path) {
  const lit = [];
  let at = nodes.findIndex(({ parent }) => parent === null);
  for (const fingerprint of path) {
    const above = at;
    at = nodes.findIndex((node) => node.parent === above && node.fingerprint === fingerprint);
    if (at < 0) break;
    lit.push(at);
  }
  return lit;
}

function curve(from, to) {
  const middle = (from.radius + to.radius) / 2;
  const by = ({ angle }) => `${(middle * Math.cos(angle)).toFixed(1)} ${(middle * Math.sin(angle)).toFixed(1)}`;
  return `M${from.x.toFixed(1)} ${from.y.toFixed(1)}C${by(from)} ${by(to)} ${to.x.toFixed(1)} ${to.y.toFixed(1)}`;
}

/** A label and where it stands: outwards of its dot, or inwards where there is more room, cut to what there is. */
function boxOf(spot, letter, view) {
  const gap = size(spot) + letter * 0.4;
  const wide = letter * (spot.on ? 0.62 : 0.58);
  const wanted = spot.title.length * wide;
  const [leftRoom, rightRoom] = [spot.x - gap - view.left, view.right - spot.x - gap];
  const isLeft = spot.x < 0 ? leftRoom >= Math.min(wanted, rightRoom) : rightRoom < Math.min(wanted, leftRoom);
  const fitting = Math.floor((isLeft ? leftRoom : rightRoom) / wide);
  const words = fitting >= spot.title.length ? spot.title : `${spot.title.slice(0, Math.max(1, fitting - 1)).trimEnd()}…`;
  const width = words.length * wide;
  const anchor = spot.x + (isLeft ? -gap : gap);
  const left = isLeft ? anchor - width : anchor;
  return { words, anchor, side: isLeft ? "end" : "start", left, right: left + width, top: spot.y - letter * 0.7, bottom: spot.y + letter * 0.7 };
}

function overlap(a, b) {
  return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
}

function distance(a, b) {
  return Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
}

function clamp(value, low, high) {
  return Math.min(high, Math.max(low, value));
}
