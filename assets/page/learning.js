// Who types is about to ask: what the model writes for itself gives way before the message is sent.
const TYPING_MS = 10000;
let typedAt = -TYPING_MS;
on('input', (event) => {
  if (!event.target.matches?.('#hc-box textarea') || event.timeStamp - typedAt < TYPING_MS) return;
  typedAt = event.timeStamp;
  trigger('hc_typing', {});
});
