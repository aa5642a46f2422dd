// What the page does when the server gives it a cue. `reply`: one is in progress here that this page does not follow yet;
// another tab asked for it, or this one before it was loaded anew. `news`: another tab changed something.
const CUES = { reply: 'hc_follow', news: 'hc_watch' };

when('#hc-cue', (cue) => {
  let last = '';
  const look = () => {
    const given = cue.querySelector('[data-cue]');
    const now = given ? `${given.dataset.cue} ${given.dataset.state}` : '';
    if (now && now !== last) trigger(CUES[given.dataset.cue], {});
    last = now;
  };
  look();
  changes(cue, look, { childList: true, subtree: true, attributes: true, attributeFilter: ['data-cue', 'data-state'] });
});
