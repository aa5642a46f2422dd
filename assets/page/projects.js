// Projects in the list of chats: their dialogs and menu. What there is to choose stands in the list itself. Notes about the
// user: what is typed is kept, what is selected in a reply can be added.
const knownProjects = () => JSON.parse(find('#hc-list .hc-projects')?.dataset.known || '{"projects":[],"models":[],"presets":[]}');
const projectOf = (id) => knownProjects().projects.find((project) => project.id === Number(id));

function editProject(project) {
  const { projects, models, presets } = knownProjects();
  const parts = [];
  const labelled = (text, field) => {
    const label = made('label', { textContent: text });
    label.append(field);
    parts.push(label);
    return field;
  };
  const chosenOf = (text, none, options, value) => {
    const field = labelled(text, made('select', {}));
    [['', none], ...options].forEach(([key, name]) => field.append(made('option', { value: key, textContent: name })));
    field.value = value;
    return field;
  };
  const name = labelled(_('Name'), made('input', { value: project.name, maxLength: 100, required: true, dir: 'auto' }));
  const system = labelled(_('System prompt'), made('textarea', { value: project.system_prompt, rows: 4, dir: 'auto' }));
  const missing = project.model && !models.includes(project.model) ? [project.model] : [];
  const model = chosenOf(_('Model'), _('Whichever is loaded'), [...models, ...missing].map((one) => [one, one]), project.model);
  const preset = chosenOf(_('Preset'), _('No preset'), presets, project.preset_id || '');
  parts.push(made('p', { className: 'hc-quiet', textContent: _('New chats in this project start with these settings. Existing chats keep theirs.') }));
  const title = project.id ? _('Edit this project') : _('New project');
  const form = formOf({ title, action: _('Save'), className: 'hc-edit-project' }, ...parts);
  const check = () => {
    const given = name.value.trim().replace(/\s+/g, ' ');
    const taken = projects.some((one) => one.name === given && one.id !== project.id);
    name.setCustomValidity(taken ? _('There is a project of this name. Take another one.') : given ? '' : _('A project needs a name. Type one.'));
  };
  name.oninput = check;
  check();
  form.onsubmit = () => trigger('hc_project_save', {
    id: project.id, name: name.value,
    data: JSON.stringify({ system_prompt: system.value, model: model.value, preset: Number(preset.value) }),
  });
  show(form);
  name.select();
}

acts.hc_project_add = () => editProject({ id: 0, name: '', system_prompt: '', model: '', preset_id: null });
acts.hc_project_new = ({ id }) => {
  goToChat('hc_project_new', 0, { id });
  leaveSidebar();
};
acts.hc_project_edit = ({ id }) => editProject(projectOf(id));
acts.hc_project_menu = ({ button, id }) => openMenu(button, [
  entry(_('New chat'), '', () => acts.hc_project_new({ id })),
  entry(_('Edit'), 'F2', () => editProject(projectOf(id))),
  entry(_('Export as JSON'), '', () => trigger('hc_export', { id, text: 'project' })),
  entry(_('Delete with its chats'), 'Delete', () => trigger('hc_project_delete', { id })),
]);

function moveChat(id, title, inside) {
  const choose = (project, name) => made('button', {
    type: 'submit', textContent: name, dir: 'auto', disabled: project === inside,
    onclick: () => trigger('hc_move', { id, text: String(project || '') }),
  });
  const there = made('section', {});
  there.append(...knownProjects().projects.map((project) => choose(project.id, project.name)), choose(0, _('No project')));
  const first = made('button', { type: 'button', textContent: _('New project'), onclick: acts.hc_project_add });
  show(formOf({ title: _('Move “{title}”', { title }), first, className: 'hc-move' }, there));
}

// The notes, here and in the settings: kept a moment after the last key.
let noting = 0;
on('input', (event) => {
  const field = event.target;
  if (!field.closest('.hc-notes')) return;
  const text = field.value;
  clearTimeout(noting);
  noting = setTimeout(() => {
    if (field.value === text) return void trigger('hc_notes', { id: 0, text });
    field.value = text; // the answer that fills the panel came late, and put what was there before
    field.dispatchEvent(new Event('input', { bubbles: true }));
  }, 500);
});
