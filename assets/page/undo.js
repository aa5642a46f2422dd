// The line that takes a deletion back goes when its time is over.
const undoButton = () => (find('#hc-undo')?.hidden ? null : find('#hc-undo .hc-undo-button'));

when('#hc-undo', (line) => {
  let timer = null;
  const renew = () => {
    clearTimeout(timer);
    line.hidden = false;
    const seconds = Number(line.querySelector('.hc-undo')?.dataset.seconds);
    if (!seconds) return;
    timer = setTimeout(() => {
      const within = line.contains(document.activeElement);
      line.hidden = true;
      if (within) (titles().find((title) => title.tabIndex === 0) || box()).focus();
    }, seconds * 1000);
  };
  renew();
  changes(line, renew, { childList: true, subtree: true, characterData: true, attributes: true, attributeFilter: ['data-id'] });
});
