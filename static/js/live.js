// Live pages: one socket for each, opened again when it is lost. It tells small numbers, which are written where they stand, and
// marks; an element with data-part="usage config …" (and an id) is fetched again, with the page, when one of its marks is another
// one than the page was made with. Nothing that a person is in the middle of is replaced: it waits.
(() => {
  const place = document.querySelector("[data-live]");
  if (!place) return;
  const word = place.querySelector(".word");
  const scheme = location.protocol === "https:" ? "wss:" : "ws:";
  const SILENCE = 30000, LEAST = 1000, OLD = 60000;
  const FOREIGN = 4404, FORBIDDEN = 4403, CHANGED = 4409;
  const known = JSON.parse(place.dataset.seen || "{}");
  const stale = new Set();
  let attempt = 0, heardAt = 0, wasLost = false, socket = null, timer = 0;
  let fetching = false, fetchedAt = Date.now(), took = 0, waiting = 0;

  const say = (isLive) => {
    place.classList.toggle("lost", !isLive);
    if (word) word.textContent = isLive ? place.dataset.on : place.dataset.off;
  };
  const put = (box, selector, text) => {
    for (const found of box.querySelectorAll(selector)) if (found.textContent !== text) found.textContent = text;
  };

  // ------------------------------------------------------------------------------------------------- small numbers

  function show(told) {
    for (const badge of document.querySelectorAll("[data-open-alerts]")) {
      badge.hidden = !told.alerts;
      put(badge, "[data-count]", String(told.alerts));
    }
    if (told.running !== undefined) put(document, "[data-running]", String(told.running));
    if (told.left !== undefined) put(document, ".answer [data-live-left]", told.left);
    for (const meter of told.meters || []) {
      for (const box of document.querySelectorAll(`[data-meter="${CSS.escape(meter.id)}"]`)) fill(box, meter);
    }
  }

  function fill(box, meter) {
    put(box, "[data-left]", meter.left);
    put(box, "[data-held]", meter.held);
    put(box, "[data-used]", meter.used);
    put(box, "[data-percent]", String(meter.percent));
    const bar = box.querySelector("svg.bar");
    if (!bar) return;
    const [left, held] = bar.querySelectorAll("rect");
    left.setAttribute("width", meter.left_share);
    if (held) { held.setAttribute("x", meter.left_share); held.setAttribute("width", meter.held_share); }
    for (const one of [box, bar]) { one.classList.remove("low", "out", "empty"); if (meter.level) one.classList.add(meter.level); }
  }

  // ------------------------------------------------------------------------------------------------- newer parts

  const parts = () => [...document.querySelectorAll("[data-part]")];

  function compare(marks, isAll) {
    for (const [name, value] of Object.entries(marks)) {
      const before = known[name];
      known[name] = value;
      if (!isAll && (before === undefined || before === value)) continue;
      for (const part of parts()) if (part.dataset.part.split(" ").includes(name)) stale.add(part.id);
    }
    soon();
  }

  // Somebody types, chooses, marks a text, or has a form or a dialog open there.
  function isBusy(part) {
    const active = document.activeElement;
    if (part.contains(active) && active.matches("input, select, textarea")) return true;
    if (part.querySelector("[data-open], dialog[open], input:checked[data-select], .htmx-request")) return true;
    const selection = getSelection();
    return selection && !selection.isCollapsed && part.contains(selection.anchorNode);
  }

  const ready = () => [...stale].map((id) => document.getElementById(id)).filter((part) => part && !isBusy(part));

  function soon() {
    if (!stale.size || waiting || fetching) return;
    // A page that costs much is asked for less often.
    const pause = Math.max(LEAST, 4 * took) - (Date.now() - fetchedAt);
    waiting = setTimeout(() => { waiting = 0; if (!document.hidden && ready().length) fetchParts(); }, Math.max(50, pause));
  }

  async function fetchParts() {
    fetching = true;
    const began = Date.now();
    const wanted = ready().map((part) => part.id);
    wanted.forEach((id) => stale.delete(id));
    try {
      const answer = await fetch(location.pathname + location.search, { headers: { "X-Live": "1" }, credentials: "same-origin", cache: "no-store" });
      if (answer.ok && !answer.redirected) {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        data(page);
        for (const id of wanted) replace(id, page.getElementById(id));
        document.dispatchEvent(new CustomEvent("weir:parts"));
      }
    } catch { wanted.forEach((id) => stale.add(id)); }
    fetching = false;
    fetchedAt = Date.now();
    took = fetchedAt - began;
    soon();
  }

  // The numbers of charts stand in inert scripts.
  function data(page) {
    for (const script of page.querySelectorAll('script[type="application/json"][id]')) {
      const own = document.getElementById(script.id);
      if (own) own.textContent = script.textContent;
    }
  }

  const KEYS = ["request", "member", "account", "limit", "entry"];
  // Where an element stands in a part, told so that it is found again among newer ones.
  function path(root, element) {
    const steps = [];
    for (let at = element; at && at !== root; at = at.parentElement) {
      const key = KEYS.find((name) => at.dataset[name]);
      if (at.id || key) {
        steps.unshift(at.id ? `#${CSS.escape(at.id)}` : `[data-${key}="${CSS.escape(at.dataset[key])}"]`);
        break;
      }
      steps.unshift(`${at.tagName.toLowerCase()}:nth-child(${[...at.parentElement.children].indexOf(at) + 1})`);
    }
    return steps.join(" > ");
  }

  function replace(id, fresh) {
    const old = document.getElementById(id);
    if (!old) return;
    if (isBusy(old)) { stale.add(id); return; }
    if (!fresh) { if (old.dataset.optional !== undefined) old.replaceChildren(); return; }
    if (old.outerHTML === fresh.outerHTML) return;
    const active = old.contains(document.activeElement) ? path(old, document.activeElement) : "";
    const scrolls = [...old.querySelectorAll(".scroll")].map((box) => [box.scrollLeft, box.scrollTop]);
    const opened = [...old.querySelectorAll("details")].map((box) => box.open);
    const rows = [...old.querySelectorAll("tbody[data-entry]")].filter((row) => row.querySelector('[aria-expanded="true"]'));
    const node = document.importNode(fresh, true);
    for (const row of rows) {
      const other = node.querySelector(`#${CSS.escape(row.id)}`);
      if (other) other.replaceWith(row);
    }
    old.replaceWith(node);
    [...node.querySelectorAll(".scroll")].forEach((box, n) => { if (scrolls[n]) [box.scrollLeft, box.scrollTop] = scrolls[n]; });
    const folds = [...node.querySelectorAll("details")];
    if (folds.length === opened.length) folds.forEach((box, n) => { box.open = opened[n]; });
    if (window.htmx) htmx.process(node);
    if (active) { const again = node.querySelector(active); if (again) again.focus({ preventScroll: true }); }
  }

  // What waited because somebody was busy with it; and countdowns, which grow old by themselves.
  const all = () => { for (const part of parts()) stale.add(part.id); soon(); };
  setInterval(() => { if (!document.hidden && Date.now() - fetchedAt > OLD) all(); else soon(); }, 2000);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return;
    if (Date.now() - fetchedAt > OLD) all(); else soon();
    if (!socket) again(0);
  });

  // ------------------------------------------------------------------------------------------------- the socket

  function open() {
    clearTimeout(timer);
    const own = socket = new WebSocket(`${scheme}//${location.host}${place.dataset.live}`);
    heardAt = Date.now();
    own.onmessage = (event) => {
      if (own !== socket) return;
      attempt = 0;
      heardAt = Date.now();
      const told = JSON.parse(event.data);
      if (told.type === "still") return;
      say(told.type === "live");
      if (told.type !== "live") return;
      show(told);
      // What came while nobody listened is fetched with the rest.
      compare(told.marks, wasLost);
      wasLost = false;
    };
    own.onclose = (event) => { if (own === socket) lost(event.code); };
  }

  function lost(code) {
    socket = null;
    wasLost = true;
    say(false);
    if (code === FOREIGN || code === FORBIDDEN) return;
    again(code === CHANGED ? 0 : Math.min(500 * 2 ** attempt++, 15000) * (0.5 + Math.random()));
  }

  function again(pause) { clearTimeout(timer); timer = setTimeout(open, pause); }

  // A connection that was cut without a word: the server says something every ten seconds.
  setInterval(() => {
    if (socket && Date.now() - heardAt > SILENCE) { const dead = socket; lost(0); dead.close(); }
  }, 5000);
  addEventListener("online", () => { if (!socket) again(0); });
  addEventListener("pageshow", (event) => { if (event.persisted) { all(); if (!socket || socket.readyState > 1) again(0); } });
  open();
})();
