// Stands before Gradio's own script. Gradio 6.31 takes its loading screen away while a clock in it runs, which then asks
// for sixty frames a second as long as the page is open: a tenth of a core. What took hold of this function before the
// page stood gets no frame from then on; all others call the browser's own.
{
  const frame = window.requestAnimationFrame;
  let stands = false;
  window.requestAnimationFrame = (then) => (stands ? 0 : frame.call(window, then));
  window.hcStands = () => {
    stands = true;
    document.querySelector('#hc-first-screen')?.remove();
    window.requestAnimationFrame = frame;
  };
}
// The language and the colours of the document, set before anything is drawn.
window.hcSpeak = (language) => {
  document.documentElement.lang = language;
  document.documentElement.dir = /^(ar|fa|he|ur)\b/.test(language) ? 'rtl' : 'ltr';
};
window.hcKeptTheme = () => localStorage.getItem('hc-theme') || 'system'; // a choice of this browser
window.hcDark = () => {
  const theme = window.hcKeptTheme();
  return theme === 'system' ? window.matchMedia('(prefers-color-scheme: dark)').matches : theme === 'dark';
};
