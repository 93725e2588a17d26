// Which tables a pipe selects: globs over `database.table`, as headrace.model.table_selection reads them. Pure functions.

/** The globs that apply: the pipe's `include` replaces the source's `tables`; both kinds of `exclude` count. */
export function effective(draft, source, database) {
  const own = draft.include.length ? draft.include : source?.tables?.length ? source.tables : database ? [`${escapeGlob(database)}.*`] : [];
  const whole = (globs) => globs.map((glob) => (glob.includes(".") || !database ? glob : `${database}.${glob}`));
  return { include: whole(own), exclude: whole([...(source?.exclude ?? []), ...draft.exclude]) };
}

export function isSelected(globs, name) {
  return globs.include.some((glob) => matches(glob, name)) && !globs.exclude.some((glob) => matches(glob, name));
}

/** Change the draft so that a table is selected, or is not. */
export function setTable(draft, source, database, name, selected) {
  const now = () => isSelected(effective(draft, source, database), name);
  const exact = escapeGlob(name);
  const short = database && name.startsWith(`${database}.`) ? escapeGlob(name.slice(database.length + 1)) : exact;
  const drop = (globs) => globs.filter((glob) => glob !== exact && glob !== short);
  if (now() === selected) return;
  if (selected) {
    draft.exclude = drop(draft.exclude);
    if (now()) return;
    const all = `${escapeGlob(name.slice(0, name.indexOf(".")))}.*`;
    const before = effective(draft, source, database).include;
    const without = draft.exclude.includes(all);
    draft.exclude = draft.exclude.filter((glob) => glob !== all);
    // All tables of the database were left out: now this one alone is selected.
    draft.include = [...before.filter((glob) => !without || glob !== all), exact];
  } else {
    draft.include = drop(draft.include);
    if (now()) draft.exclude = [...draft.exclude, exact];
  }
}

/** Change the draft so that all tables of a database are selected, or none. */
export function setDatabase(draft, source, database, name, selected) {
  const prefix = `${escapeGlob(name)}.`;
  const others = (globs) => globs.filter((glob) => !glob.startsWith(prefix) && (glob.includes(".") || name !== database));
  const before = effective(draft, source, database).include;
  draft.exclude = others(draft.exclude);
  draft.include = others(before);
  if (selected) draft.include = [...draft.include, `${prefix}*`];
  else if (!draft.include.length || draft.include.some((glob) => matches(glob, `${name}.x`))) draft.exclude = [...draft.exclude, `${prefix}*`];
  if (!draft.include.length) draft.include = before;
}

export function escapeGlob(name) {
  return name.replace(/[*?[]/g, "[$&]");
}

function matches(glob, name) {
  let pattern = "";
  for (let at = 0; at < glob.length; at += 1) {
    const sign = glob[at];
    const end = sign === "[" ? glob.indexOf("]", at + (glob[at + 1] === "!" ? 3 : 2)) : -1;
    if (sign === "*") pattern += ".*";
    else if (sign === "?") pattern += ".";
    else if (end > 0) {
      const inside = glob.slice(at + 1, end).replace(/[\\\]^[]/g, "\\$&");
      pattern += inside.startsWith("!") ? `[^${inside.slice(1)}]` : `[${inside}]`;
      at = end;
    } else pattern += sign.replace(/[.+^${}()|[\]\\]/g, "\\$&");
  }
  try {
    return new RegExp(`^(?:${pattern})$`, "s").test(name);
  } catch {
    return false;
  }
}
