'use strict';
// Takes over what has changed, element by element: so focus, selection, scroll and what is folded stay.
const main = document.querySelector('main');
const live = document.querySelector('#live');
const kept = new Set(['open', 'hidden', 'checked', 'aria-sort']);  // what a person changes
function follow(old, now) {
  if (old.isEqualNode(now)) { return; }
  if (old.nodeType !== now.nodeType || old.nodeName !== now.nodeName || old.id !== now.id) {
    old.replaceWith(now.cloneNode(true));
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) { old.data = now.data; return; }
  for (const {name} of [...old.attributes]) {
    if (!kept.has(name) && !now.hasAttribute(name)) { old.removeAttribute(name); }
  }
  for (const {name, value} of now.attributes) {
    if (!kept.has(name) && old.getAttribute(name) !== value) { old.setAttribute(name, value); }
  }
  if (old.localName === 'th' && old.querySelector('button')) { return; }  // its words are in the button now
  const sorted = old.localName === 'tbody' && old.parentNode.querySelector('th[aria-sort]');
  (sorted ? followSorted : followChildren)(old, [...now.childNodes]);
}
const find = (parent, id) => id ? [...parent.children].find((one) => one.id === id) : null;
// Children with an id are found by it: so a block that comes in between moves no other.
function followChildren(old, after) {
  const wanted = new Set(after.map((child) => child.id).filter(Boolean));
  let at = old.firstChild;
  const drop = () => { const gone = at; at = at.nextSibling; gone.remove(); };
  for (const child of after) {
    const same = find(old, child.id);
    while (at && at !== same && at.id && !wanted.has(at.id)) { drop(); }
    if (same && same !== at) {
      old.insertBefore(same, at);
      follow(same, child);
    } else if (!at || (child.id ? !same : at.id)) {
      old.insertBefore(child.cloneNode(true), at);
    } else {
      const next = at.nextSibling;
      follow(at, child);
      at = next;
    }
  }
  while (at) { drop(); }
}
// Rows that a person has sorted stay in that order; new ones come last.
function followSorted(old, after) {
  const wanted = new Set(after.map((row) => row.id));
  for (const row of [...old.children]) { if (!wanted.has(row.id)) { row.remove(); } }
  for (const row of after) {
    const same = find(old, row.id);
    if (same) { follow(same, row); } else { old.append(row.cloneNode(true)); }
  }
}
// What had the focus has it again, if its element was made anew or moved.
function takeOver(html) {
  const now = main.cloneNode(false);
  now.innerHTML = html;
  const active = document.activeElement, place = active.closest('main [id]');
  follow(main, now);
  if (document.activeElement !== active && place) {
    const again = active.isConnected ? active : document.getElementById(place.id)?.querySelector(active.localName);
    again?.focus({preventScroll: true});
  }
  showFields();
  age();
}
// How long ago a moment was; a page without this script has the time itself.
function age() {
  for (const one of document.querySelectorAll('time.ago')) {
    one.textContent = `${Math.max(0, Math.round((Date.now() - Date.parse(one.dateTime)) / 1000))} s ago`;
  }
}
setInterval(age, 1000);
age();
const source = new EventSource(main.dataset.events);
let told = '', busy = false, again = false;
const say = (words, kind) => { live.textContent = words; live.className = kind; };
function end(words) { source.close(); say(words, 'look'); }
async function renew() {
  if (busy) { again = true; return; }
  busy = true;
  try {
    const answer = await fetch(main.dataset.part);
    if (answer.ok) {
      takeOver(await answer.text());
    } else if (answer.status === 404) {
      end('This session was removed: the page shows it as it was.');
    }
  } catch (error) {} finally { busy = false; }
  if (again) { again = false; renew(); }
}
source.onopen = () => say('live', 'dim on');
source.onmessage = (event) => {
  if (told !== event.data) { renew(); }  // at the first one, too: what it tells may be newer than the page
  told = event.data;
};
source.onerror = async () => {
  told = '';
  if (source.readyState !== EventSource.CLOSED) { say('No connection: trying again.', 'look'); return; }
  say('No news: load the page again.', 'look');
  renew();  // is it there still?
};
