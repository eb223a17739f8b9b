// Keeps the page current: fetches it again every second and changes only the differences, so that
// focus, selection and scroll position do not move. Without this script the page has a reload link.
"use strict";
(() => {
  const every = 1000; // ms
  let live = true;
  let timer = 0;

  const button = document.createElement("button");
  button.id = "refresh";
  button.type = "button";
  button.className = "button";
  button.addEventListener("click", () => {
    live = !live;
    label();
    if (live) update();
  });
  document.getElementById("refresh").replaceWith(button);
  label();

  function label() {
    button.textContent = live ? "Pause" : "Resume";
    button.title = live ? "The page updates itself" : "The page does not update itself";
  }

  async function update() {
    clearTimeout(timer);
    if (live && !document.hidden) {
      try {
        const answer = await fetch(location.pathname + location.search, { cache: "no-store", signal: AbortSignal.timeout(15000) });
        const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
        const main = fresh.getElementById("main");
        if (!main) throw new Error("this is not the page");
        if (live) {
          morph(document.getElementById("main"), main);
          document.title = fresh.title;
        }
      } catch {
        unreachable();
      }
    }
    clearTimeout(timer); // another update may have started since
    timer = setTimeout(update, every);
  }

  // unreachable shows that the process that serves the page does not respond; the next good reply removes it.
  function unreachable() {
    if (document.getElementById("unreachable")) return;
    const banner = document.createElement("div");
    banner.id = "unreachable";
    banner.className = "banner";
    banner.setAttribute("role", "alert");
    const text = document.createElement("p");
    text.textContent = "The process that serves this page does not respond. The data below was last read before that.";
    banner.append(text);
    document.getElementById("main").prepend(banner);
  }

  // morph changes a node into a copy of another one.
  function morph(node, like) {
    if (node.nodeType !== like.nodeType || node.nodeName !== like.nodeName || node.id !== like.id) {
      node.replaceWith(document.importNode(like, true));
      return;
    }
    if (node.nodeType !== Node.ELEMENT_NODE) {
      if (node.nodeValue !== like.nodeValue) node.nodeValue = like.nodeValue;
      return;
    }
    for (const { name } of [...node.attributes]) {
      if (!like.hasAttribute(name)) node.removeAttribute(name);
    }
    for (const { name, value } of like.attributes) {
      if (node.getAttribute(name) !== value) node.setAttribute(name, value);
    }
    const old = [...node.childNodes];
    [...like.childNodes].forEach((child, i) => {
      if (i < old.length) morph(old[i], child);
      else node.append(document.importNode(child, true));
    });
    old.slice(like.childNodes.length).forEach((child) => child.remove());
  }

  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) update();
  });
  timer = setTimeout(update, every);
})();
