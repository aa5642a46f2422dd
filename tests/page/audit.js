// What test_access.py asks of every visible text and control: `audit.poor()`, `audit.small()`.
window.audit = (() => {
  const rgba = (colour) => {
    const [r, g, b, a = 1] = colour.match(/[\d.]+/g).map(Number);
    const unit = colour.startsWith('color(srgb') ? 255 : 1;
    return [r * unit, g * unit, b * unit, a];
  };
  const over = (top, under) => under.map((value, i) => top[i] * top[3] + value * (1 - top[3]));
  const light = (colour) => {
    const [r, g, b] = colour.map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const around = (element) => {
    const all = [];
    for (let at = element; at; at = at.parentElement || at.getRootNode().host) all.push(at);
    return all;
  };
  const ground = (element) => around(element).reverse()
    .reduce((below, at) => over(rgba(getComputedStyle(at).backgroundColor), below), [255, 255, 255]);
  const opacity = (element) => around(element).reduce((value, at) => value * getComputedStyle(at).opacity, 1);
  const shown = (element) => {
    const { width, height } = element.getBoundingClientRect();
    return width && height && element.checkVisibility({ visibilityProperty: true }) && opacity(element) > 0
      && !element.closest('.hc-spoken, .sr-only, :disabled');
  };

  function* texts(root) {
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT | NodeFilter.SHOW_ELEMENT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      if (node.shadowRoot) yield* texts(node.shadowRoot);
      if (node.nodeType === Node.TEXT_NODE) {
        if (node.textContent.trim()) yield [node.parentElement, node.textContent, ''];
      } else if (node.matches('textarea, input:not([type=checkbox], [type=range])')) {
        yield [node, node.value, ''];
        if (node.placeholder) yield [node, node.placeholder, '::placeholder'];
      }
    }
  }

  // Texts whose contrast is below 4.5:1.
  function poor() {
    const found = [];
    for (const [element, text, part] of texts(document.body)) {
      if (!element || element.matches('script, style') || !shown(element)) continue;
      if (getComputedStyle(element).textIndent.startsWith('-')) continue; // an icon stands for it
      const back = ground(element);
      const colour = rgba(getComputedStyle(element, part || null).color);
      colour[3] *= opacity(element);
      const [dark, bright] = [light(over(colour, back)), light(back)].sort((a, b) => a - b);
      const ratio = (bright + 0.05) / (dark + 0.05);
      if (ratio < 4.5) found.push(`${ratio.toFixed(2)} ${element.tagName}.${element.className} ${text.trim().slice(0, 40)}`);
    }
    return found;
  }

  // Controls below 24 by 24 pixels, their labels counted.
  function small() {
    return [...document.querySelectorAll('button, input, summary, textarea')].filter(shown).map((element) => {
      const own = element.getBoundingClientRect();
      const label = element.closest('label')?.getBoundingClientRect() || own;
      const size = [Math.max(own.width, label.width), Math.max(own.height, label.height)];
      return { size, name: `${element.tagName}.${element.className} ${element.ariaLabel || element.textContent}` };
    }).filter(({ size }) => Math.min(...size) < 24).map(({ size, name }) => `${name} ${size}`);
  }

  return { poor, small };
})();
