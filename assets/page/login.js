// Out, or in again: the session may have ended behind an open page (log-out in another tab, a restart).
const toLogin = () => window.location.replace(`login${window.location.search}`);

async function logOut() {
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
