// What pages can do beyond links and forms. Without this script they are whole; with it they stay current.
"use strict";

const live = document.querySelector("[data-live]");
const trouble = document.querySelector("[data-trouble]");

function show(element, html) {
  // The focus stays where it was: on the element with the same address or id.
  const focused = document.activeElement;
  const mark = focused && element.contains(focused) ? focused.id || focused.getAttribute("href") : null;
  const scrolls = [...element.querySelectorAll(".wide")].map((box) => [box.scrollLeft, box.scrollTop]);
  element.innerHTML = html;
  [...element.querySelectorAll(".wide")].forEach((box, n) => scrolls[n] && box.scrollTo(...scrolls[n]));
  if (mark) {
    const same = element.querySelector(`[id="${CSS.escape(mark)}"], [href="${CSS.escape(mark)}"]`);
    if (same) same.focus({ preventScroll: true });
  }
  dress(element);
}

// Only a page that can be seen has a stream.
let stream = null;
function follow() {
  if (document.hidden || !live || !live.childElementCount) {
    if (stream) stream.close();
    stream = null;
  } else if (!stream) {
    const address = new URL(location.href);
    address.searchParams.set("live", "");
    stream = new EventSource(address);
    stream.onmessage = (event) => {
      trouble.hidden = true;
      show(live, JSON.parse(event.data));
    };
    stream.addEventListener("trouble", (event) => {
      trouble.hidden = false;
      trouble.textContent = `What is above is old: ${JSON.parse(event.data)}`;
    });
    stream.onerror = () => {
      trouble.hidden = false;
      const now = stream.readyState === EventSource.CLOSED ? "Load the page again." : "It is asked again and again.";
      trouble.textContent = `What is above is old: the console does not answer. ${now}`;
    };
  }
}
document.addEventListener("visibilitychange", follow);
follow();

// Buttons that only work with a script are hidden without one.
function dress(element) {
  for (const button of element.querySelectorAll("[data-copy]")) {
    button.hidden = false;
    button.onclick = async () => {
      await navigator.clipboard.writeText(button.parentElement.querySelector("code").textContent);
      button.textContent = "Copied";
    };
  }
}
dress(document);

// A search goes on by itself: the page of its next step has what that step has found.
const ENOUGH = 500;
async function search() {
  const cancel = document.querySelector("[data-cancel]");
  const part = (page, name) => page.querySelector(`[data-search-${name}]`);
  const rows = (page) => part(page, "matches").querySelector("tbody");
  let going = true;
  cancel.hidden = false;
  cancel.onclick = () => (going = false);
  for (let next; going && (next = part(document, "next")) && rows(document).rows.length < ENOUGH; ) {
    try {
      const answer = await fetch(next.href);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (!answer.ok) throw new Error(page.querySelector("[role=alert]").textContent);
      rows(document).append(...rows(page).rows);
      part(document, "progress").replaceWith(part(page, "progress"));
    } catch (error) {
      trouble.hidden = false;
      trouble.textContent = `The search has stopped: ${error.message}`;
      break;
    }
  }
  cancel.hidden = true;
}
if (document.querySelector("[data-search-next]")) search();

// Keys: "/" to the first field of search, "g" and a letter to a page.
let pressed = "";
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    const field = document.querySelector("[data-search]");
    if (field) {
      event.preventDefault();
      field.focus();
    }
  } else if (pressed === "g") {
    const link = event.key === "o" ? document.querySelector(".home") : document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
    if (link) link.click();
  }
  pressed = event.key;
});
