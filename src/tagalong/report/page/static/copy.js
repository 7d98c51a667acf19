// Copies code to the clipboard, and tells readers and screen readers whether that worked.
function makeCopyable(button) {
  const status = button.parentElement.querySelector('[role=status]');
  const code = find(button.dataset.copies);
  button.hidden = false;
  button.addEventListener('click', async () => {
    status.textContent = '';
    const copied = await copyText(code);
    status.textContent = copied ? 'Copied.' : 'Selected; press Ctrl+C or ⌘C to copy.';
  });
}

// The clipboard is not available on pages served without encryption, where selecting the text and copying may work.
async function copyText(element) {
  try {
    await navigator.clipboard.writeText(element.textContent);
    return true;
  } catch {
    getSelection().selectAllChildren(element);
    return document.execCommand('copy');
  }
}
