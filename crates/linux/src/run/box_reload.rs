//! Reloading the configuration of a box.

use std::time::Duration;

use braid_proxy::BoxCore;
use braid_proxy::app::Ctx;
use braid_proxy::config::BoxConfig;
use braid_proxy::control::{Answer, STOPPING};

use super::gateway_box::{BoxHost, SilenceDetector, warn_of_plaintext};
use super::places::Places;
use super::process::raise_descriptor_limit;
use super::reload;
use super::uplinks::in_use;
use crate::driver::Context;
use crate::net::{Result, SystemError};

/// Grace period in which a removed link keeps its path and routes, so that its subflows' ends are sent over
/// it and answered.
const LINK_REMOVAL_GRACE: Duration = Duration::from_secs(3);

impl BoxHost<'_> {
    /// Takes over configurations that were read again, if the system accepts them.
    pub(super) fn take_over(&mut self, context: &mut Context<'_, BoxCore>) {
        while let Some((read, asker)) = self.reload.as_ref().and_then(|reloader| reloader.next()) {
            let outcome = read.map_err(|error| reload::refuse(&error));
            let outcome = outcome.and_then(|new| {
                if context.core.is_stopping() {
                    return Err(Answer::Wrong(STOPPING.to_owned()));
                }
                let mut config = match &self.reload {
                    Some(reloader) => reloader.config.clone(),
                    None => {
                        return Err(Answer::Error(
                            "the box was started without a configuration file".to_owned(),
                        ));
                    }
                };
                let changes = config.reload(new);
                let changed = self.change_to(context, &config);
                changed.map_err(|error| Answer::Error(error.to_string()))?;
                if let Some(reloader) = &mut self.reload {
                    reloader.config = config;
                }
                self.update_machine_faults(context.core);
                Ok(changes)
            });
            reload::tell(outcome, asker);
        }
    }

    /// Changes to `config`. Steps that the system may refuse come first, and are undone if it does.
    fn change_to(&mut self, context: &mut Context<'_, BoxCore>, config: &BoxConfig) -> Result<()> {
        let Some(before) = self.reload.as_ref().map(|reloader| reloader.config.clone()) else {
            return Ok(());
        };
        let mut places = self.network.places.clone();
        let leave_at = context.now + LINK_REMOVAL_GRACE;
        let Some(added) = places.change(&config.links, leave_at) else {
            let action = "add so many links while removed links still close";
            return Err(SystemError::other(action, "try again in a few seconds"));
        };
        context.sockets.listen_only(&config.socks)?;
        let places = std::mem::replace(&mut self.network.places, places);
        if let Err(error) = self.network_to(config) {
            self.network.places = places;
            let put_back = [
                self.network_to(&before),
                context.sockets.listen_only(&before.socks),
            ];
            for error in put_back.into_iter().filter_map(Result::err) {
                tracing::error!(%error, "cannot undo a failed reload: parts of the new configuration are in \
                                         force; restart the box");
            }
            return Err(error);
        }
        self.core_to(context, config, &added);
        let gateways = self.changed_gateways(&before);
        self.refresh(context);
        for at in gateways {
            context.stack.revalidate_path(context.now, self.paths[at]);
        }
        self.keep_forwarding(context.core);
        if before.servers != config.servers {
            warn_of_plaintext(config);
        }
        Ok(())
    }

    fn network_to(&mut self, config: &BoxConfig) -> Result<()> {
        self.network.apply_rules(config)?;
        self.network.route(config)
    }

    /// Changes core and engine to `config`. `added` has place and number of each new link.
    fn core_to(
        &mut self,
        context: &mut Context<'_, BoxCore>,
        config: &BoxConfig,
        added: &[(usize, usize)],
    ) {
        let streams = raise_descriptor_limit(config.limits.connections());
        context.sockets.set_max_streams(streams);
        let (now, core) = (context.now, &mut *context.core);
        let mut ctx = Ctx {
            now,
            stack: context.stack,
            downstream: context.sockets,
        };
        core.reload(&mut ctx, config);
        let network = &mut self.network;
        let v6 = network.guard.device().has_v6();
        for (at, number) in added {
            let uplinks = network.places.uplinks(config);
            let state = network.observed(*at);
            let place = u8::try_from(*at).unwrap_or(u8::MAX);
            let addresses = uplinks.addresses_of(place, &config.links[*number], &state, v6);
            network
                .addresses
                .resize(network.addresses.len().max(*at + 1), addresses);
            network.addresses[*at] = addresses;
            let addresses = in_use(addresses, &network.links, *at);
            let path = match self.paths.get(*at) {
                Some(path) => core.replace_link(now, *path, (*number, addresses), context.stack),
                None => core.add_link(now, *number, addresses, context.stack),
            };
            let Ok(path) = path.inspect_err(|error| tracing::error!(%error, "cannot add a link: it carries no \
                                                                             traffic until the box is restarted"))
            else {
                continue;
            };
            debug_assert_eq!(path, Places::path(*at));
            self.paths.resize(self.paths.len().max(*at + 1), path);
            self.silence_detectors
                .resize(self.paths.len(), SilenceDetector::default());
            self.silence_detectors[*at] = SilenceDetector::default();
        }
    }

    /// Returns the places of links whose gateway setting changed.
    fn changed_gateways(&self, before: &BoxConfig) -> Vec<usize> {
        let other = |at: &usize| {
            self.network.places.link(*at).is_some_and(|link| {
                let mut links = before.links.iter();
                links.any(|old| old.goes_on_as(link) && old.gateway != link.gateway)
            })
        };
        (0..self.paths.len()).filter(other).collect()
    }

    /// Removes the paths and routes of links whose grace period is over.
    pub(super) fn clear_places(&mut self, context: &mut Context<'_, BoxCore>) {
        let cleared = self.network.places.clear(context.now);
        if cleared.is_empty() {
            return;
        }
        for at in &cleared {
            let (now, path) = (context.now, self.paths[*at]);
            context.core.remove_path(now, path, context.stack);
            if let Some(mtu) = self.network.mtus.get_mut(*at) {
                *mtu = 0;
            }
        }
        let Some(config) = self.reload.as_ref().map(|reloader| reloader.config.clone()) else {
            return;
        };
        if let Err(error) = self.network_to(&config) {
            tracing::warn!(%error, "cannot remove all routes of a link that was removed; they stay until the \
                                    box ends");
        }
        self.refresh(context);
    }
}
