// A form that gives a passkey: <form data-passkey="add|use|sign-in" data-options='{"publicKey": …}'>. On submit the browser asks for
// it; what it answers goes into the field "credential", and the form is sent. "sign-in" asks the form's address for its options first.
(() => {
  function bytes(text) {
    const plain = text.replace(/-/g, "+").replace(/_/g, "/");
    return Uint8Array.from(atob(plain + "=".repeat((4 - (plain.length % 4)) % 4)), (letter) => letter.charCodeAt(0));
  }
  function text(buffer) {
    return btoa(String.fromCharCode(...new Uint8Array(buffer))).replace(/\+/g, "-").replace(/\//g, "_").replace(/=/g, "");
  }
  function described(list) { return (list || []).map((one) => ({ ...one, id: bytes(one.id) })); }

  async function made(options, isAlone) {
    const asked = options.publicKey;
    const credential = await navigator.credentials.create({
      publicKey: {
        ...asked,
        challenge: bytes(asked.challenge),
        user: { ...asked.user, id: bytes(asked.user.id) },
        excludeCredentials: described(asked.excludeCredentials),
        authenticatorSelection: {
          ...asked.authenticatorSelection,
          residentKey: isAlone ? "required" : "discouraged",
          requireResidentKey: isAlone,
          ...(isAlone ? { userVerification: "required" } : {}),
        },
      },
    });
    const answer = credential.response;
    return answered(credential, {
      clientDataJSON: text(answer.clientDataJSON),
      attestationObject: text(answer.attestationObject),
      transports: answer.getTransports ? answer.getTransports() : [],
    });
  }

  async function used(options) {
    const asked = options.publicKey;
    const credential = await navigator.credentials.get({
      publicKey: { ...asked, challenge: bytes(asked.challenge), allowCredentials: described(asked.allowCredentials) },
    });
    const answer = credential.response;
    return answered(credential, {
      clientDataJSON: text(answer.clientDataJSON),
      authenticatorData: text(answer.authenticatorData),
      signature: text(answer.signature),
      userHandle: answer.userHandle ? text(answer.userHandle) : null,
    });
  }

  function answered(credential, response) {
    return {
      type: credential.type,
      id: credential.id,
      rawId: text(credential.rawId),
      authenticatorAttachment: credential.authenticatorAttachment,
      response,
      clientExtensionResults: credential.getClientExtensionResults(),
    };
  }

  async function asked(form) {
    if (form.dataset.options) return JSON.parse(form.dataset.options);
    const response = await fetch(form.action, { headers: { Accept: "application/json" } });
    if (!response.ok) throw new Error(`options: ${response.status}`);
    return (await response.json()).request_options;
  }

  for (const form of document.querySelectorAll("form[data-passkey]")) {
    const trouble = form.querySelector("[data-trouble]");
    const button = form.querySelector("[type=submit]");
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      trouble.hidden = true;
      if (!window.PublicKeyCredential || !navigator.credentials) { say(form.dataset.unable); return; }
      button.disabled = true;
      try {
        const options = await asked(form);
        const alone = form.querySelector("[name=passwordless]");
        const credential = form.dataset.passkey === "add" ? await made(options, Boolean(alone && alone.checked)) : await used(options);
        form.querySelector("[name=credential]").value = JSON.stringify(credential);
        form.submit();
      } catch {
        // What went wrong is not told by browsers, so that pages cannot find out which passkeys there are.
        say(form.dataset.failed);
        button.disabled = false;
        button.focus();
      }
    });
    function say(words) { trouble.textContent = words; trouble.hidden = false; }
  }
})();
