// Keeps a page of package inspect up to date: it reads the page again when the server says that something has changed.
"use strict";
(() => {
  const live = document.getElementById("live");
  let reading = false, changed = false;

  // Replaces the parts of the page that tell of volumes; the form stays as it was filled in. Time lines that were open stay open,
  // and the keyboard stays where it was.
  function show(text) {
    const next = new DOMParser().parseFromString(text, "text/html");
    const open = new Set([...document.querySelectorAll("details[open]")].map((d) => d.id));
    const focused = focus();
    for (const id of ["summary", "content"]) {
      const from = next.getElementById(id), to = document.getElementById(id);
      if (from && to) to.replaceWith(document.adoptNode(from));
    }
    document.title = next.title;
    for (const d of document.querySelectorAll("details")) d.open = open.has(d.id);
    if (focused) document.querySelector(focused)?.focus({preventScroll: true});
  }

  // Returns a selector of the element that has the keyboard, if it is one that show replaces; a time line has it by its summary.
  function focus() {
    const at = document.activeElement;
    if (!at || !at.closest("#summary, #content")) return "";
    if (at.id) return "#" + CSS.escape(at.id);
    const line = at.closest("details[id]");
    return line ? "#" + CSS.escape(line.id) + " > summary" : "";
  }

  async function read() {
    if (reading) { changed = true; return; }
    reading = true;
    changed = false;
    const began = performance.now();
    try {
      // A server that does not answer is as good as gone: what is shown is then not what is so.
      const answer = await fetch(location.href, {cache: "no-store", signal: AbortSignal.timeout(10000)});
      if (!answer.ok) throw new Error(answer.statusText);
      show(await answer.text());
      live.textContent = "Live.";
    } catch {
      live.textContent = "Connection lost. This is the last known state.";
    }
    // A page that takes long is read seldom.
    const rest = Math.min(9 * (performance.now() - began), 10000);
    setTimeout(() => { reading = false; if (changed) read(); }, rest);
  }

  const stream = new EventSource(live.dataset.events);
  stream.addEventListener("change", read);
  stream.onerror = () => { live.textContent = "Connection lost. This is the last known state."; };
  setInterval(() => { if (!document.hidden) read(); }, 10000); // Times are relative to now.
})();
