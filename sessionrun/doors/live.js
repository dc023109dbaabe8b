'use strict';
// Takes over what has changed, element by element: so focus, selection, scroll and what is folded stay.
const main = document.querySelector('main');
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
  followChildren(old, [...now.childNodes]);
}
// Children with an id are found by it: so a block that comes in between moves no other.
function followChildren(old, after) {
  const wanted = new Set(after.map((child) => child.id).filter(Boolean));
  let at = old.firstChild;
  const drop = () => { const gone = at; at = at.nextSibling; gone.remove(); };
  for (const child of after) {
    const same = child.id ? [...old.children].find((one) => one.id === child.id) : null;
    while (at && at !== same && (same || (at.id && !wanted.has(at.id)))) { drop(); }
    if (!at || (child.id ? !same : at.id)) {
      old.insertBefore(child.cloneNode(true), at);
    } else {
      const next = at.nextSibling;
      follow(at, child);
      at = next;
    }
  }
  while (at) { drop(); }
}
const source = new EventSource(main.dataset.events);
let told = null, busy = false, again = false;
async function renew() {
  if (busy) { again = true; return; }
  busy = true;
  try {
    const answer = await fetch(main.dataset.part);
    if (answer.ok) {
      const now = main.cloneNode(false);
      now.innerHTML = await answer.text();
      follow(main, now);
    } else if (answer.status === 404) {
      main.prepend('This session was removed. ');
      source.close();
    }
  } catch (error) {} finally { busy = false; }
  if (again) { again = false; renew(); }
}
source.onmessage = (event) => {
  if (told !== null && told !== event.data) { renew(); }
  told = event.data;
};
source.onerror = () => { told = ''; };
