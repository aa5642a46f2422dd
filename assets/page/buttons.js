// Buttons in generated HTML reach the server through `trigger`. Only those with this process's key count, so that
// nothing in a reply can press one. `acts` are those that the browser does, or begins, itself; all others are the server's.
const KEY = '__KEY__';
const acts = {};

// The server knows a page once it has told it what it shows, and follows it to another chat or view once it has answered
// each step there (address.js). What else is asked before that waits, since it is meant for where the page goes.
const STEPS = ['hc_open', 'hc_go', 'hc_panel'];
let known = Boolean(window.hcKnown);
const early = [];
const toServer = trigger;
trigger = (act, given) => {
  if (known && (!answers || STEPS.includes(act))) toServer(act, given);
  else early.push([act, given]);
};
const sendEarly = () => { for (const [act, given] of early.splice(0)) trigger(act, given); };

// Steps to another chat or view are numbered: of several in a hurry the last one counts, in whatever order they arrive.
let lastStep = 0;
const nextStep = () => (lastStep = Math.max(lastStep + 1, Date.now() * 1000));
const step = (act, given) => trigger(act, { ...given, step: nextStep() });

// Should the page be built twice, what the first script listened to ends.
window.hcEnd?.abort();
window.hcEnd = new AbortController();
const on = (type, then, options = {}) => document.addEventListener(type, then, { signal: window.hcEnd.signal, ...options });

on('click', (event) => {
  const button = event.target.closest('[data-act]');
  if (!button || button.dataset.key !== KEY || button.disabled) return;
  const act = button.dataset.act;
  const id = Number(button.dataset.id);
  const text = button.dataset.text || '';
  if (acts[act]) acts[act]({ button, id, text });
  else step(act, { id, text });
});
