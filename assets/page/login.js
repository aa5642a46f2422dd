// Out, or in again: the session may have ended behind an open page (log-out in another tab, a restart).
const toLogin = () => window.location.replace(`login${window.location.search}`);

acts.hc_log_out = async () => {
  await fetch('logout', { method: 'POST' }).catch(() => {});
  window.location.replace('login');
};

if (!window.hcFetch) {
  window.hcFetch = window.fetch;
  window.fetch = async (...request) => {
    const response = await window.hcFetch(...request);
    if (response.status === 401) toLogin();
    return response;
  };
}
