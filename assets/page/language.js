// The page's sentences in the language that the server speaks to this browser. A choice is kept here, as a cookie.
const WORDS = __WORDS__;
const LANGUAGE = WORDS[''];
const LANGUAGE_COOKIE = '__LANGUAGE_COOKIE__';
window.hcSpeak(LANGUAGE);

// A sentence; its values are named in it.
const _ = (text, values = {}) => (WORDS[text] ?? text).replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);

const languageKept = () => new RegExp(`(?:^|; )${LANGUAGE_COOKIE}=([\\w-]+)`).exec(document.cookie)?.[1] ?? '';
function chooseLanguage(code) {
  const was = languageKept();
  document.cookie = `${LANGUAGE_COOKIE}=${code}; path=/; max-age=${code ? 34560000 : 0}; SameSite=Lax`;
  if (code !== was) setTimeout(() => window.location.reload(), 300); // what was typed is kept, as with every reload
}
