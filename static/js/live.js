// The live number: what is left, told over a socket that is opened again when it is lost.
(() => {
  const mark = document.querySelector("[data-live]");
  if (!mark) return;
  const word = mark.querySelector(".word");
  const scheme = location.protocol === "https:" ? "wss:" : "ws:";
  let pause = 500;
  function open() {
    const socket = new WebSocket(`${scheme}//${location.host}${mark.dataset.live}`);
    socket.onopen = () => { pause = 500; };
    socket.onmessage = (event) => {
      const told = JSON.parse(event.data);
      mark.classList.toggle("off", told.type !== "usage");
      word.textContent = told.type === "usage" ? "Live" : "Not live";
      if (told.type !== "usage") return;
      document.documentElement.dataset.live = told.left;
      const here = document.querySelector(".answer [data-live-left]");
      if (here) here.textContent = told.left;
      for (const meter of document.querySelectorAll(".meter")) {
        if (meter.querySelector("h3").textContent !== told.meter) continue;
        meter.querySelector(".big > span").textContent = told.left;
        meter.querySelector("dd").textContent = `${told.percent} %`;
      }
    };
    socket.onclose = (event) => {
      mark.classList.add("off");
      word.textContent = "Not live";
      if (event.code === 4404 || event.code === 4403) return;
      setTimeout(open, pause);
      pause = Math.min(pause * 2, 15000);
    };
  }
  open();
})();
