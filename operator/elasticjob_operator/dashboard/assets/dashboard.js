"use strict";
// Keeps the page up to date with what the server sends. All HTML comes from the server, which escapes it; log lines are
// set as text. Without this script, the pages work too: loading them again shows the changes.

const $ = (id) => document.getElementById(id);
const body = document.body;
let stream = null;

// --- parts of the page ---------------------------------------------------------------------------------------

// Replaces what is in an element, but not an input that somebody is using; a focused link or button keeps the focus.
function put(element, html) {
  const focused = element.contains(document.activeElement) ? document.activeElement : null;
  if (focused && focused.matches("input:not([type=checkbox])")) {
    focused.addEventListener("blur", () => put(element, html), { once: true });
    return;
  }
  const id = focused && focused.id;
  element.innerHTML = html;
  if (id && $(id)) $(id).focus({ preventScroll: true });
}

function putRows(order, rows) {
  const table = document.querySelector("#jobs tbody");
  const focused = table.contains(document.activeElement) ? document.activeElement.id : "";
  const known = new Map([...table.rows].map((row) => [row.id, row]));
  const place = document.createElement("template");
  for (const [id, html] of Object.entries(rows)) {
    place.innerHTML = html;
    const row = place.content.firstElementChild;
    if (known.has(id)) {
      known.get(id).replaceWith(row);
      row.className = "new";
    }
    known.set(id, row);
  }
  order.forEach((id, at) => {
    if (table.rows[at] !== known.get(id)) table.insertBefore(known.get(id), table.rows[at] || null);
  });
  while (table.rows.length > order.length) table.deleteRow(-1);
  if (focused && $(focused)) $(focused).focus({ preventScroll: true });
}

function duration(seconds) {
  seconds = Math.max(0, Math.floor(seconds));
  if (seconds < 120) return `${seconds}s`;
  const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60);
  if (minutes < 180) return `${minutes}m`;
  return hours < 48 ? `${hours}h` : `${Math.floor(hours / 24)}d`;
}

setInterval(() => {
  for (const time of document.querySelectorAll("time[data-since]")) {
    const text = duration(Date.now() / 1000 - Number(time.dataset.since));
    if (time.textContent !== text) time.textContent = text;
  }
}, 1000);

// --- changes --------------------------------------------------------------------------------------------------

function show(change) {
  for (const [region, html] of Object.entries(change.regions || {})) {
    if (!$(region)) continue;
    put($(region), html);
    const section = $(region).closest("section");
    if (section) section.hidden = html === "";
  }
  if (change.order) putRows(change.order, change.rows);
  if (change.gone) body.dataset.stream = "";
}

function listen() {
  if (stream) stream.close();
  stream = null;
  if (!body.dataset.stream || document.hidden) return; // a browser has few connections for one server
  stream = new EventSource(body.dataset.stream);
  stream.onopen = () => { $("live").textContent = "Live"; };
  stream.onmessage = (event) => {
    show(JSON.parse(event.data));
    if (!body.dataset.stream) stream.close();
  };
  stream.onerror = () => {
    const ended = stream.readyState === EventSource.CLOSED;
    $("live").textContent = ended ? "Not live: start the dashboard again" : "Not live: connecting again";
  };
}

document.addEventListener("visibilitychange", listen);
addEventListener("pagehide", () => stream && stream.close());
addEventListener("pageshow", (event) => event.persisted && listen());

// --- the filter of the list -----------------------------------------------------------------------------------

if ($("filter")) {
  let timer = 0;
  const apply = () => {
    const query = new URLSearchParams({ q: $("q").value });
    history.replaceState(null, "", `/?${query}`);
    body.dataset.stream = `/events?${query}`;
    listen();
  };
  $("q").addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(apply, 150);
  });
  $("filter").addEventListener("submit", (event) => {
    event.preventDefault();
    apply();
  });
}

// --- changes of a job -----------------------------------------------------------------------------------------

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!form.matches("[data-act]")) return;
  event.preventDefault();
  const fields = new URLSearchParams(new FormData(form, event.submitter));
  $("said").className = "";
  $("said").textContent = "Sent …";
  try {
    const answer = await fetch(form.action, { method: "POST", body: fields, headers: { Accept: "application/json" } });
    $("said").textContent = (await answer.json()).message;
    $("said").className = answer.ok ? "" : "bad";
  } catch (error) {
    $("said").textContent = "The dashboard does not answer.";
    $("said").className = "bad";
  }
});

// --- logs -----------------------------------------------------------------------------------------------------

const MOST_LINES = 5000;
let logs = null;

function isFound(text) {
  return text.toLowerCase().includes($("find").value.toLowerCase());
}

function addLines(lines) {
  const log = $("log"), added = document.createDocumentFragment();
  for (const line of lines) {
    const element = document.createElement("div");
    element.textContent = line;
    element.classList.toggle("out", !isFound(line));
    added.append(element);
  }
  log.append(added);
  while (log.childElementCount > MOST_LINES) log.firstElementChild.remove();
  if ($("follow").checked) log.scrollTop = log.scrollHeight;
}

function showLogs() {
  if (logs) logs.close();
  $("log").replaceChildren();
  $("log").hidden = false;
  $("log-state").textContent = "Reading …";
  const query = new URLSearchParams($("rank").value ? { rank: $("rank").value } : {});
  logs = new EventSource(`${document.querySelector("[data-logs]").dataset.logs}?${query}`);
  logs.onmessage = (event) => {
    const change = JSON.parse(event.data);
    if (change.lines) addLines(change.lines);
    if (change.state !== undefined) $("log-state").textContent = change.state;
    if (change.end) logs.close();
  };
  logs.onerror = () => {
    logs.close(); // to connect again would repeat the lines
    $("log-state").textContent = "The log was interrupted. Show it again to continue.";
  };
}

if ($("logs")) {
  document.querySelector("[data-logs]").addEventListener("submit", (event) => {
    event.preventDefault();
    showLogs();
  });
  $("find").addEventListener("input", () => {
    for (const line of $("log").children) line.classList.toggle("out", !isFound(line.textContent));
  });
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-rank]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    $("rank").value = link.dataset.rank;
    $("logs").scrollIntoView();
    $("show-logs").focus();
    showLogs();
  });
  if (location.hash === "#logs") showLogs();
}

listen();
