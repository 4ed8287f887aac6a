// My key, live: numbers told over a socket that is opened again when it is lost. When there is a newer request in the log, the
// parts of the page that show it are fetched again (htmx, "weir:newer").
(() => {
  const mark = document.querySelector("[data-live]");
  if (!mark) return;
  const word = mark.querySelector(".word");
  const scheme = location.protocol === "https:" ? "wss:" : "ws:";
  let newest = mark.dataset.newest;
  let deciding;
  let pause = 500;
  let shownAt = Date.now();

  function say(text, isLive) { mark.classList.toggle("lost", !isLive); word.textContent = text; }
  function put(box, selector, text) { for (const place of box.querySelectorAll(selector)) if (place.textContent !== text) place.textContent = text; }

  function show(told) {
    put(document, ".answer [data-live-left]", told.left);
    for (const meter of told.meters) {
      const box = document.querySelector(`[data-meter="${CSS.escape(meter.id)}"]`);
      if (!box) continue;
      put(box, "[data-left]", meter.left);
      put(box, "[data-held]", meter.held);
      put(box, "[data-used]", meter.used);
      put(box, "[data-percent]", String(meter.percent));
      const [left, held] = box.querySelectorAll("rect");
      left.setAttribute("width", meter.left_share);
      held.setAttribute("x", meter.left_share);
      held.setAttribute("width", meter.held_share);
      box.setAttribute("class", `meter ${meter.level}`);
      box.querySelector("svg").setAttribute("class", `bar ${meter.level} thick`);
    }
    // The first sentence names the limit that decides; another one is another sentence.
    const isNewer = told.newest !== newest || (deciding !== undefined && told.deciding !== deciding);
    newest = told.newest;
    deciding = told.deciding;
    if (isNewer) fetchParts();
  }

  function fetchParts() { shownAt = Date.now(); document.body.dispatchEvent(new CustomEvent("weir:newer")); }
  // Countdowns of a page that was left alone are old when one comes back to it.
  document.addEventListener("visibilitychange", () => { if (!document.hidden && Date.now() - shownAt > 60000) fetchParts(); });

  function open() {
    const socket = new WebSocket(`${scheme}//${location.host}${mark.dataset.live}`);
    socket.onmessage = (event) => {
      pause = 500;
      const told = JSON.parse(event.data);
      if (told.type !== "usage") { say("Not live", false); return; }
      say("Live", true);
      show(told);
    };
    socket.onclose = (event) => {
      say("Not live", false);
      if (event.code === 4404 || event.code === 4403) return;
      setTimeout(open, pause);
      pause = Math.min(pause * 2, 15000);
    };
  }
  open();
})();
