// Buttons in generated HTML reach the server through `trigger`. Only those with this process's key count, so that
// nothing in a reply can press one. `acts` are those that the browser does, or begins, itself; all others are the server's.
const KEY = '__KEY__';
const acts = {};

// The server follows the page to another chat or view once the stream says so (address.js). What else is asked before that
// waits, since it is meant for where the page goes. A request for a reply is meant for where the page is: all that is pressed
// after it, steps included, waits until the server has taken or refused it (ReplyHandlers._ask_on). A message waits for its
// files, too. A tab that is loaded again before the answer came asks for it by the number of its request.
const STEPS = ['hc_new', 'hc_project_new', 'hc_open', 'hc_go', 'hc_panel'];
const ASKS = ['hc_send', 'hc_example', 'hc_edit', 'hc_again', 'hc_continue'];
const ASKED_MS = 60_000; // after which an answer is not waited for any more
const ASKED = 'hc-asked';
const early = []; // what waits, in its order: { act, given, request }
// The request for a reply that is not answered yet: its number, and the chat and text of one that has some.
let asked = JSON.parse(sessionStorage.getItem(ASKED) || 'null');
let stepSent = 0; // number of the last step that the server was told of
const toServer = trigger;
// `request`: of a message, the chat and the text; if it is not from the box, the question that was `edited`.
trigger = (act, given, request = {}) => {
  early.push({ act, given, request });
  sendEarly();
};
function sendEarly() {
  let waits = false; // whether a request for a reply does
  for (const one of [...early]) {
    const { act, given, request } = one;
    if (!known() || asked) return;
    const there = STEPS.includes(act) || Number(shows.step) >= stepSent;
    if (act === 'hc_attached' ? there : there && !waits && !(act === 'hc_send' && reading())) {
      early.splice(early.indexOf(one), 1);
      if (STEPS.includes(act)) stepSent = given.step;
      if (ASKS.includes(act)) asksFor(act, given, { ...request, number: nextNumber() });
      else toServer(act, given);
    } else waits ||= ASKS.includes(act);
  }
}

function asksFor(act, given, request) {
  asked = request;
  noteAsked();
  toServer(act, { ...given, step: request.number });
  setTimeout(() => { if (asked === request) answered('refused'); }, ASKED_MS);
}
const noteAsked = () => keepText(ASKED, asked?.text && JSON.stringify(asked));
function answered(how) {
  const request = asked;
  asked = null;
  noteAsked();
  if (request.edited) editSent(request.edited);
  if (how === 'taken' && request.text && !request.edited) leftTheBox(request);
  if (how === 'refused' && request.edited) intoTheBox(request);
  else if (how === 'refused') for (const one of underWay(request.chat)) one.behind = request.text;
  sendEarly();
}
onWord.answered = (said) => {
  const [number, how] = said.split(' ');
  if (asked && Number(number) === asked.number) answered(how);
};
const askAgain = () => { if (asked) asksFor('hc_asked', {}, asked); };

// Messages of a chat that the server has not taken yet: their texts stand at the beginning of its box until then.
const underWay = (of = chatOfBox) => [asked, ...early.filter(({ act }) => act === 'hc_send').map(({ request }) => request)]
  .filter((one) => one?.text && !one.edited && one.chat === of);

// What is pressed is numbered: of several steps to another chat or view the last one counts, in whatever order they arrive.
let lastNumber = 0;
const nextNumber = () => (lastNumber = Math.max(lastNumber + 1, Date.now() * 1000));
const numbered = (act, given) => trigger(act, { ...given, step: nextNumber() });

// Values of Gradio's controls come with the answer to an event; where something else changed them, the page asks.
onWord.fetch = (count) => { if (count !== '0') toServer('hc_fetch', {}); };

on('click', (event) => {
  const button = event.target.closest('[data-act]');
  if (!button || button.dataset.key !== KEY || button.disabled) return;
  const act = button.dataset.act;
  const id = Number(button.dataset.id);
  const text = button.dataset.text || '';
  if (acts[act]) acts[act]({ button, id, text });
  else numbered(act, { id, text });
});
