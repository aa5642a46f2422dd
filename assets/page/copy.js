// What is copied is what the model wrote, byte for byte.
async function copy(button, text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without a secure origin there is no clipboard API.
    const area = document.createElement('textarea');
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand('copy');
    area.remove();
  }
  const label = button.textContent;
  button.textContent = _('Copied');
  setTimeout(() => { button.textContent = label; }, 1200);
}

acts.hc_copy = ({ button, text }) => copy(button, text);
acts.hc_copy_code = ({ button }) => copy(button, button.closest('.hc-code').querySelector('code').textContent);

// What is drawn is copied as its source also when it is selected by hand: formulas, and boxes of tasks.
function copySelected(event) {
  const selection = window.getSelection();
  if (!selection.rangeCount || event.target.closest?.('textarea, input')) return;
  const range = selection.getRangeAt(0);
  if ([...document.querySelectorAll('.hc-piece')].some((piece) => range.intersectsNode(piece)) && !range.cloneContents().querySelector('article')) {
    event.clipboardData.setData('text/plain', range.toString()); // its pieces are no lines
    event.preventDefault();
    return;
  }
  const within = (node) => (node.nodeType === Node.ELEMENT_NODE ? node : node.parentElement).closest('math');
  const [first, last] = [within(range.startContainer), within(range.endContainer)];
  if (first) range.setStartBefore(first);
  if (last) range.setEndAfter(last);
  const part = range.cloneContents();
  const drawn = part.querySelectorAll('math, .hc-task');
  if (!drawn.length) return;
  for (const node of drawn) node.replaceWith(node.getAttribute('alttext') ?? node.textContent);
  for (const head of part.querySelectorAll('.hc-code-head')) head.remove();
  const text = document.createElement('div');
  text.className = 'hc-text hc-copied';
  text.append(part);
  document.body.append(text); // only what is laid out has lines
  event.clipboardData.setData('text/plain', text.innerText);
  text.remove();
  event.preventDefault();
}

if (window.hcCopy) document.removeEventListener('copy', window.hcCopy);
window.hcCopy = copySelected;
document.addEventListener('copy', copySelected);
