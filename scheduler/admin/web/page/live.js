// Keeps the page current: listens to what changes, and has htmx fetch the page again and change only
// the differences, so that focus, selection, scroll position and what is under the pointer do not
// move. It also gives the pages their keys. Without this script the page has a reload link.
"use strict";
(() => {
  const main = document.getElementById("main");

  let follows = null; // the place whose output is followed

  // htmx makes no function of a text, also where a proxy drops the policy of the page. What a person has opened stays
  // open.
  function refuse() {
    throw new Error("the pages of lockstep evaluate no text");
  }
  htmx.registerExtension("lockstep", {
    init: (api) => api.initSecurity(null, refuse, refuse),
    htmx_before_morph_attr: (element, { attrName }) => !(attrName === "open" && element.nodeName === "DETAILS"),
  });

  live();
  keys();
  about();
  output();
  selection();
  for (const select of document.querySelectorAll("select[data-filter]")) {
    select.addEventListener("change", () => select.form.requestSubmit());
  }

  // live fetches the page again when the events of the server name one of its sections, and now and then for the ages
  // of things. Without events it does so every second.
  function live() {
    const link = document.getElementById("refresh");
    if (!link || !main.hasAttribute("data-live")) return;
    const every = 1000; // ms
    const rest = 5000; // how long the page may rest while events come
    const silence = 30000; // before events are tried again after a failure
    const address = link.href;
    let on = true;
    let events = null; // null: none are asked for
    let silentUntil = 0;
    let lost = false; // Redis could not be read
    let due = false; // something has changed
    let running = false;
    let asked = Date.now();
    let updated = asked;
    let pressed = false;
    let settle = null; // ends the swap that has begun

    const box = document.createElement("span");
    box.className = "live";
    const age = document.createElement("span");
    age.className = "age";
    const button = document.createElement("button");
    button.id = "refresh";
    button.type = "button";
    button.className = "button";
    button.addEventListener("click", () => {
      on = !on;
      label();
      resume();
    });
    box.append(age, button);
    link.replaceWith(box);
    label();

    function label() {
      button.textContent = on ? "Pause" : "Resume";
      button.title = on ? "The page updates itself" : "The page does not update itself";
      told();
    }

    // told shows how old the page is. It changes no text that is the same, so that a screen reader is not disturbed.
    function told() {
      const seconds = Math.round((Date.now() - updated) / 1000);
      const text = `updated ${seconds < 2 ? "now" : seconds + " s ago"}`;
      if (age.textContent !== text) age.textContent = text;
    }

    // listen opens the events by the browser's own EventSource. hx-sse 4.0.1, of htmx, connects in a tab that is opened
    // in the background, also in one that was hidden between two attempts, and never tries again when the first attempt
    // fails; and here it would need as much code to open and close.
    function listen() {
      if (events || !on || document.hidden || Date.now() < silentUntil) return;
      const source = new EventSource(main.dataset.events);
      source.addEventListener("overview", ({ data }) => {
        const shown = main.dataset.live.split(" ");
        if (lost || JSON.parse(data).sections.some((section) => shown.includes(section))) changed();
        lost = false;
      });
      source.addEventListener("problem", () => {
        lost = true;
        changed();
      });
      source.addEventListener("error", () => {
        if (source.readyState === EventSource.CLOSED) hush(silence); // else the browser connects again
        changed();
      });
      events = source;
    }

    // hush closes the connection of the events: a browser has few of them for a server.
    function hush(ms) {
      if (events) events.close();
      events = null;
      silentUntil = Date.now() + ms;
    }

    function changed() {
      due = true;
      if (Date.now() - asked >= every) update();
    }

    function tick() {
      listen();
      const rests = events && events.readyState === EventSource.OPEN && Date.now() - asked < rest;
      if (due || !rests) update();
      told();
    }

    // resume goes on after a pause, or closes the connection for one.
    function resume() {
      if (!on || document.hidden) {
        hush(0);
        htmx.trigger(main, "htmx:abort");
      } else {
        due = true;
        tick();
      }
    }

    async function update() {
      if (running || !on || document.hidden || busy()) return;
      running = true;
      due = false;
      asked = Date.now();
      await htmx.ajax("GET", address, { source: main, target: main, select: "#main", swap: "outerMorph" });
      running = false;
      told();
    }

    // htmx shows a reply whatever its status is. A problem, or what is not a page of lockstep, must
    // not replace data.
    main.addEventListener("htmx:before:swap", (event) => {
      const next = event.detail.tasks[0].fragment.querySelector("#main");
      if (!next) {
        lose();
      } else if (next.hasAttribute("data-problem") && !main.hasAttribute("data-problem")) {
        warn(next.querySelector(".banner").textContent.trim() + " The data below was last read before that.");
      } else if (on && !document.hidden && !busy()) {
        settle = hold();
        return;
      } else {
        due = true;
      }
      event.preventDefault();
    });

    main.addEventListener("htmx:after:swap", () => {
      settle();
      output();
      updated = Date.now();
    });

    main.addEventListener("htmx:error", lose); // no reply, or none in time

    function lose() {
      hush(silence); // many tabs with events may have left no connection
      warn("The process that serves this page does not respond. The data below was last read before that.");
    }

    // busy reports that a change now would disturb: a button of the mouse is down, or text is selected.
    function busy() {
      const selection = getSelection();
      return pressed || (!selection.isCollapsed && main.contains(selection.anchorNode));
    }

    // hold notes where the element under the pointer is, or else the one with the focus. The function that it returns
    // scrolls so that the element is there again after a change. An element that moved keeps the focus.
    function hold() {
      const focus = main.contains(document.activeElement) ? document.activeElement : null;
      const held = main.querySelector("tr:hover, a:hover") || focus;
      const before = held && held !== main ? held.getBoundingClientRect().top : 0;
      return () => {
        if (focus && focus.isConnected && document.activeElement !== focus) focus.focus({ preventScroll: true });
        if (held && held !== main && held.isConnected) {
          const moved = held.getBoundingClientRect().top - before;
          if (moved) scrollBy(0, moved);
        }
      };
    }

    // warn shows a problem above the page's data; the next good reply removes it.
    function warn(text) {
      let banner = document.getElementById("unreachable");
      if (!banner) {
        banner = document.createElement("div");
        banner.id = "unreachable";
        banner.className = "banner";
        banner.setAttribute("role", "alert");
        banner.append(document.createElement("p"));
        const settle = hold();
        main.prepend(banner);
        settle();
      }
      if (banner.firstChild.textContent !== text) banner.firstChild.textContent = text;
    }

    document.addEventListener("pointerdown", () => (pressed = true));
    for (const end of ["pointerup", "pointercancel", "blur"]) addEventListener(end, () => (pressed = false));
    document.addEventListener("visibilitychange", resume);
    setInterval(tick, every);
    listen();
  }

  // output follows what a run prints, where the page has a place for it.
  function output() {
    const place = main.querySelector("[data-follow]");
    if (!place || place === follows) return;
    follows = place;
    const most = 1 << 18; // characters shown
    let source = null;
    const print = (text) => {
      if (!place.firstChild) {
        const pre = document.createElement("pre");
        pre.tabIndex = 0;
        pre.setAttribute("role", "region");
        pre.setAttribute("aria-label", "Output so far");
        place.append(pre);
      }
      const pre = place.firstChild;
      const atEnd = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 8;
      pre.textContent = (pre.textContent + text).slice(-most);
      if (atEnd) pre.scrollTop = pre.scrollHeight;
    };
    const listen = () => {
      if (source) source.close();
      source = null;
      if (!place.isConnected) {
        document.removeEventListener("visibilitychange", listen);
        return;
      }
      if (document.hidden) return;
      place.replaceChildren(); // the first event has the end of all that was printed so far
      source = new EventSource(place.dataset.follow);
      source.addEventListener("output", ({ data }) => {
        if (place.isConnected) print(JSON.parse(data).text);
        else listen();
      });
      source.addEventListener("note", ({ data }) => print(`\n[${JSON.parse(data).text}]\n`));
      source.addEventListener("end", () => source.close());
    };
    document.addEventListener("visibilitychange", listen);
    listen();
  }

  // selection lets a link check all boxes of a list, or none, and counts the checked ones. A box stays as a person left
  // it when its row moves, and is forgotten with its row.
  function selection() {
    const boxes = () => [...main.querySelectorAll("input[data-select]")];
    const count = () => {
      const line = document.getElementById("selected");
      if (!line) return;
      const text = `${boxes().filter((box) => box.checked).length} selected`;
      if (line.textContent !== text) line.textContent = text;
    };
    for (const box of boxes()) if (box.checked) box.checked = true; // now its attribute changes nothing any more
    main.addEventListener("click", (event) => {
      if (!event.target.closest("a[data-select-all]") || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      const all = boxes().every((box) => box.checked);
      for (const box of boxes()) box.checked = !all;
      count();
    });
    main.addEventListener("change", count);
    new MutationObserver(count).observe(main, { childList: true, subtree: true });
    count();
  }

  // about shows the title of the bar under the pointer, or with the focus, in the line above the lanes.
  function about() {
    const line = document.getElementById("about");
    if (!line) return;
    for (const event of ["pointerover", "focusin"]) {
      main.addEventListener(event, ({ target }) => {
        const title = target.closest("svg.lane a, svg.lane g")?.querySelector("title");
        if (title) line.textContent = title.textContent;
      });
    }
  }

  // keys lets the keyboard open every page, filter a list, and list the keys.
  function keys() {
    const pages = new Map();
    for (const link of document.querySelectorAll("nav a[data-key]")) pages.set(link.getAttribute("data-key"), link);
    let opening = 0; // when "g" was pressed

    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const target = event.target;
      if (event.key === "Escape" && document.getElementById("keys")?.open) return; // the dialog closes itself
      if (target.isContentEditable || (/^(INPUT|TEXTAREA|SELECT)$/.test(target.nodeName) && target.type !== "checkbox")) {
        if (event.key === "Escape") target.blur();
        return;
      }
      if (Date.now() - opening < 2000 && pages.has(event.key)) {
        event.preventDefault();
        pages.get(event.key).click();
        return;
      }
      opening = event.key === "g" ? Date.now() : 0;
      if (event.key === "/") {
        const search = document.querySelector("[data-search]") || document.querySelector("main input, main select");
        if (search) {
          event.preventDefault();
          search.focus();
        }
      } else if (event.key === "?") {
        list();
      }
    });

    function list() {
      let dialog = document.getElementById("keys");
      if (!dialog) {
        dialog = document.createElement("dialog");
        dialog.id = "keys";
        const title = document.createElement("h2");
        title.textContent = "Keys";
        const lines = document.createElement("dl");
        const line = (key, text) => {
          const row = document.createElement("div");
          const term = document.createElement("dt");
          const means = document.createElement("dd");
          for (const one of key.split(" ")) {
            const sign = document.createElement("kbd");
            sign.textContent = one;
            term.append(sign, " ");
          }
          means.textContent = text;
          row.append(term, means);
          lines.append(row);
        };
        line("/", "goes to the filter of the list");
        for (const [key, link] of pages) line("g " + key, "opens " + link.textContent);
        line("?", "lists the keys");
        line("Esc", "closes this, or leaves a field");
        dialog.append(title, lines);
        document.body.append(dialog);
      }
      if (!dialog.open) dialog.showModal();
    }
  }
})();
