// Out, or in again: the session may have ended behind an open page (log-out in another tab, a restart).
let loggedOut = false;
const toLogin = () => loggedOut || window.location.replace(`login${window.location.search}`);

// Whoever logs out names no chat to come back to, whatever a question on its way is answered meanwhile.
async function logOut() {
  loggedOut = true;
  await fetch('logout', { method: 'POST' }).catch(() => {});
  window.location.replace('login');
}

// Of a guest nothing stays: that is asked before.
acts.hc_log_out = ({ text }) => {
  if (!text) return logOut();
  return sure({ title: _('Log out?'), said: _('You are a guest here: all your chats will be deleted for good.'), action: _('Log out') }, logOut);
};

acts.hc_end_guest = ({ text }) => sure({
  title: _('End the session of a guest?'),
  said: _('All their chats will be deleted for good.'),
  action: _('End session'),
}, () => trigger('hc_end_session', { text }));

if (!window.hcFetch) {
  window.hcFetch = window.fetch;
  window.fetch = async (...request) => {
    const response = await window.hcFetch(...request);
    if (response.status === 401) toLogin();
    return response;
  };
}
