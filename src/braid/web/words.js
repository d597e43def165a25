/** What of a text may be sent while it is still being typed, and how a text is mended that was sent already. */

/** Length of the part that ends with a whole word and the space after it. @param {string} text */
export function wholeWords(text) {
  const found = /\s(?=\S*$)/u.exec(text);
  return found ? found.index + 1 : 0;
}

/**
 * What the box must say after an edit that reached into what was sent. That part cannot be unsent: it is put back, and
 * what was newly typed goes behind it.
 *
 * @param {string} sent what was sent, which the box began with
 * @param {string} before what the box said
 * @param {string} after what it says now
 */
export function mend(sent, before, after) {
  if (after.startsWith(sent)) return after;
  const start = common(sent, after);
  const rest = after.slice(start);
  const kept = Math.min(commonEnd(before.slice(start), rest), rest.length);
  const typed = rest.slice(0, rest.length - kept);
  const tail = before.slice(sent.length);
  return sent + typed + tail.slice(tail.length - Math.min(kept, tail.length));
}

function common(a, b) {
  let i = 0;
  while (i < a.length && i < b.length && a[i] === b[i]) i += 1;
  return i;
}

function commonEnd(a, b) {
  let i = 0;
  while (i < a.length && i < b.length && a[a.length - 1 - i] === b[b.length - 1 - i]) i += 1;
  return i;
}

/**
 * Sentences that are whole, from a place on.
 * @param {string} text @param {number} from
 * @returns {{sentences: string, to: number}} all of them, and where they end
 */
export function wholeSentences(text, from) {
  const rest = text.slice(from);
  const found = /^[\s\S]*(?:[.!?…]["'”’)]*(?=\s)|[。！？]|\n)/u.exec(rest);
  return found ? { sentences: found[0].trim(), to: from + found[0].length } : { sentences: "", to: from };
}
