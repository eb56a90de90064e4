// Live figures and charts. Everything on the pages works without this script too, as of when the page was loaded.
"use strict";
(() => {
  const units = {
    number: (v) => (v == null ? "–" : Math.abs(v) < 10 && v % 1 ? v.toFixed(1) : Math.round(v).toLocaleString("en")),
    size: (v) => {
      if (v == null) return "–";
      for (const [unit, least] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]])
        if (Math.abs(v) >= least) return (v / least).toFixed(1) + " " + unit;
      return (v % 1 && Math.abs(v) < 10 ? v.toFixed(1) : Math.round(v)) + " B";
    },
    duration: (v) => (v == null ? "–" : v < 1000 ? Math.round(v) + " ms" : (v / 1000).toFixed(1) + " s"),
  };
  const DAY = 86400;
  const moment = (seconds) => new Date(seconds * 1000).toISOString().slice(0, 19).replace("T", " ");
  // The labels of an axis: times of a day, or dates if the axis is longer than a day.
  const clock = (_, all) => all.map((x) => (all.length > 1 && all[all.length - 1] - all[0] > DAY / 2 ? moment(x).slice(5, 16) : moment(x).slice(11)));
  // A chart is at least `least` seconds wide, also while it has one point.
  const span = (times, least) => [Math.min(times[0], times[times.length - 1] - least), times[times.length - 1]];
  const charts = [];

  function color(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function draw(element) {
    const names = JSON.parse(element.dataset.series);
    const unit = units[element.dataset.unit] || units.number;
    const data = element.points;
    if (element.chart) element.chart.destroy();
    element.chart = null;
    element.textContent = data[0].length ? "" : element.dataset.empty;
    if (!data[0].length) return;
    const least = Number(element.dataset.least);
    const axis = { stroke: color("--soft"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false } };
    const series = names.map((label, at) => ({
      label, stroke: color("--series-" + ((at % 3) + 1)), width: 1.5, value: (_, v) => unit(v), points: { show: data[0].length < 30, size: 4 },
    }));
    element.chart = new uPlot({
      width: Math.max(element.clientWidth, 200), height: 140, cursor: { y: false, drag: { x: false, y: false } },
      scales: { x: { range: (plot) => span(plot.data[0], least) }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.08 : 1] } },
      axes: [{ ...axis, space: 84, size: 30, values: clock }, { ...axis, size: 64, values: (_, all) => all.map(unit) }],
      series: [{ label: "Time", value: (_, v) => (v == null ? "–" : moment(v)) }, ...series], legend: { show: true },
    }, data, element);
  }

  function begin(element) {
    element.points = JSON.parse(element.dataset.points);
    draw(element);
    charts.push(element);
    new ResizeObserver(() => {
      const width = Math.max(element.clientWidth, 200);
      if (element.chart && Math.abs(element.chart.width - width) > 2) element.chart.setSize({ width, height: 140 });
    }).observe(element);
  }

  // Columns of a chart are those of the sample with the names that the chart shows; `all` names the sample's columns.
  function extend(element, columns) {
    const last = element.points[0].length ? element.points[0][element.points[0].length - 1] : 0;
    const from = columns[0].findIndex((x) => x > last);
    if (from < 0) return;
    const first = Number(element.dataset.first || 1);
    element.points = element.points.map((column, at) => {
      const more = columns[at === 0 ? 0 : first + at - 1].slice(from);
      return column.concat(more).slice(-1800);
    });
    if (!element.chart || element.points[0].length === 30) draw(element);
    else element.chart.setData(element.points);
  }

  const state = document.getElementById("live-state");
  let source = null;
  let passing = 0; // the timer that ends a brief text
  let last = ""; // where a live tail is

  function tell(text) {
    clearTimeout(passing);
    if (state && state.textContent !== text) state.textContent = text;
  }

  // Show a text that is true for a moment only: the next event may be far away, or never come.
  function tellBriefly(text) {
    tell(text);
    passing = setTimeout(() => tell("live"), 4000);
  }

  const late = new Map(); // parts that wait until nothing in their place is selected, so that text can be copied
  const names = (e) => e.getAttribute("href") || e.getAttribute("aria-label") || e.textContent;

  // Put a new part in place of the old one; what was open stays open, and the focus stays where it was.
  function replace(part) {
    const old = document.getElementById(part.id);
    late.delete(part.id);
    if (!old || old.isEqualNode(part)) return; // a screen reader would read an equal warning again
    const chosen = getSelection();
    if (chosen && !chosen.isCollapsed && old.contains(chosen.anchorNode)) {
      late.set(part.id, part);
      return;
    }
    for (const each of old.querySelectorAll("details[open][id]")) part.querySelector("#" + CSS.escape(each.id))?.setAttribute("open", "");
    const focused = old.contains(document.activeElement) ? names(document.activeElement) : null;
    const left = [...old.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
    old.replaceWith(part);
    part.querySelectorAll(".scroll").forEach((each, at) => (each.scrollLeft = left[at] || 0));
    if (focused === null) return;
    const same = [...part.querySelectorAll("a, [tabindex], summary")].find((each) => names(each) === focused);
    (same || document.getElementById("main")).focus({ preventScroll: true });
  }

  function figures(told) {
    if (told.html !== undefined) {
      const made = document.createElement("template");
      made.innerHTML = told.html;
      for (const part of [...made.content.children]) replace(part);
    }
    for (const [name, columns] of Object.entries(told.points || {}))
      charts.filter((each) => each.dataset.chart === name).forEach((each) => extend(each, columns));
    if (told.left_out) tellBriefly(told.left_out.toLocaleString("en") + " messages came too fast to be shown");
    if (told.rows) {
      const rows = document.getElementById("tail");
      if (rows) {
        rows.insertAdjacentHTML("afterbegin", told.rows);
        while (rows.rows.length > 200) rows.deleteRow(-1);
        document.getElementById("tail-empty")?.remove();
      }
    }
  }

  const isPaused = () => document.querySelector("[data-pause]")?.getAttribute("aria-pressed") === "true";

  function open() {
    const page = document.body.dataset.stream;
    if (!page || source || document.hidden || isPaused()) return;
    source = new EventSource("/console/events?page=" + page + (last ? "&last=" + encodeURIComponent(last) : ""));
    source.onopen = () => tell("live");
    source.addEventListener("figures", (event) => { last = event.lastEventId || last; tell("live"); figures(JSON.parse(event.data)); });
    source.onerror = () => (source && source.readyState === 2 ? explain(source.url) : tell("connecting again"));
  }

  // An EventSource does not tell why it was refused, so ask once more for the page that says it.
  async function explain(address) {
    let why = "load the page again";
    try {
      const answer = await fetch(address);
      const isPage = (answer.headers.get("content-type") || "").startsWith("text/html");
      if (isPage) why = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector(".note")?.textContent || why;
      else answer.body?.cancel();
    } catch {
      why = "the server does not answer";
    }
    tell("not live: " + why);
  }

  function close() {
    if (source) source.close();
    source = null;
  }

  // A hidden tab has no stream: a browser keeps six connections to a server.
  document.addEventListener("visibilitychange", () => (document.hidden ? (close(), tell("paused")) : open()));
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", open);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach(draw));
  document.querySelectorAll(".chart").forEach(begin);
  document.addEventListener("selectionchange", () => [...late.values()].forEach(replace));
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-pause]");
    if (!button) return;
    button.setAttribute("aria-pressed", String(!isPaused()));
    if (isPaused()) { close(); tell("paused"); } else open();
  });

  // A search goes on part by part: each answer is a page with the rows of a part, and the address of the next one.
  const found = document.getElementById("search");
  let searching = null;
  async function search(address) {
    searching = new AbortController();
    const { signal } = searching;
    found.setAttribute("data-running", "");
    try {
      while (address) {
        const answer = await fetch(address, { signal });
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const now = page.getElementById("search-state");
        if (!answer.ok || !now) throw new Error(page.querySelector(".note")?.textContent || "load the page again");
        document.getElementById("found").append(...page.querySelectorAll("#found tr"));
        document.getElementById("search-state").replaceWith(now);
        address = now.dataset.next;
      }
    } catch (error) {
      const why = error instanceof TypeError ? "the server does not answer" : error.message;
      document.getElementById("search-told").textContent += signal.aborted ? " Stopped." : " Stopped: " + why;
    }
    found.removeAttribute("data-running");
  }
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-stop]")) {
      document.getElementById("search-state").removeAttribute("data-next"); // Back does not go on either
      searching?.abort();
    }
    const more = event.target.closest("[data-go-on]");
    if (!more) return;
    event.preventDefault();
    search(more.href);
  });
  // Keep what was found with the page's place in the browser's history, so that Back shows it and does not search again.
  const resultsOf = () => ["found", "search-state"].map((id) => document.getElementById(id).outerHTML);
  function keep() {
    try {
      if (found) history.replaceState({ results: resultsOf(), y: scrollY }, "");
    } catch {
      // More was found than a browser keeps. Back searches again.
    }
  }
  document.addEventListener("click", (event) => event.target.closest("a") && keep());
  window.addEventListener("pagehide", () => (keep(), searching?.abort()));
  const kept = performance.getEntriesByType("navigation")[0]?.type === "back_forward" ? history.state : null;
  if (found && kept?.results) {
    ["found", "search-state"].forEach((id, at) => (document.getElementById(id).outerHTML = kept.results[at]));
    scrollTo(0, kept.y);
  }
  const begun = document.getElementById("search-state")?.dataset.next;
  if (begun) search(begun);

  // A form is sent once, also by a double click.
  document.addEventListener("submit", (event) => {
    if (event.target.method !== "post") return;
    if (event.target.dataset.sent) event.preventDefault();
    event.target.dataset.sent = "yes";
  });
  window.addEventListener("pageshow", () => document.querySelectorAll("form[data-sent]").forEach((each) => delete each.dataset.sent));
  document.querySelectorAll("[data-all]").forEach((all) => {
    all.hidden = false;
    all.addEventListener("change", () => {
      for (const each of all.closest("form").querySelectorAll("tbody input[type=checkbox]:not(:disabled)"))
        each.checked = all.querySelector("input").checked;
    });
  });
  open();
})();
