// What a press on Close does to a remark above the box.
acts.hc_dismiss = () => {
  trigger('hc_dismiss', {});
  if (!touch()) box()?.focus({ preventScroll: true });
};
